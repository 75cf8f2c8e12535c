"""The load balancers of `deploy/` as real processes, in front of servers of a test."""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from scripts.cluster import BALANCERS, balancer_config
from scripts.ports import free_port
from tests.eventually import DEADLINE_S, eventually


class Balancer:
    """A balancer with its file of `deploy/`, in which only addresses and folders are replaced.

    Args:
        program: one of `BALANCERS`.
        ports: of the replicas on loopback.

    Attributes:
        url: base URL.
    """

    def __init__(self, program: str, ports: Sequence[int]) -> None:
        self._program = program
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._folder = Path(tempfile.mkdtemp(prefix=f"{program}-"))
        name, self._flag = BALANCERS[program]
        self._path = self._folder / name
        text = balancer_config(program, ports, self._port, self._folder)
        self._path.write_text(text, "utf-8")

    def __enter__(self) -> Self:
        program = shutil.which(self._program)
        assert program is not None, f"{self._program} is not installed"
        self._log = (self._folder / "log").open("wb")
        self.process = subprocess.Popen(
            [program, self._flag, str(self._path)], stdout=self._log, stderr=self._log
        )
        eventually(self._listens, ignoring=(OSError,))
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self._log.close()
        shutil.rmtree(self._folder)

    def _listens(self) -> bool:
        assert self.process.poll() is None, (self._folder / "log").read_text("utf-8")
        with socket.create_connection(("127.0.0.1", self._port)):
            return True
