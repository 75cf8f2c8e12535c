"""Free ports of scripts and tests: nobody is given one twice, clients do not draw them."""

import subprocess
import sys

from scripts.ports import free_port

_ASKER = "from scripts.ports import free_port; [print(free_port()) for _ in range(200)]; input()"


def test_two_processes_are_given_different_ports_before_anybody_listens() -> None:
    own = {free_port() for _ in range(200)}
    command = [sys.executable, "-c", _ASKER]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        others = {int(other.stdout.readline()) for _ in range(200)}
        later = {free_port() for _ in range(200)}
        other.stdin.close()

    assert len(own | others | later) == 600
    assert max(own | others | later) < 32_768, "clients draw their ports above"
