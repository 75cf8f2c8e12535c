"""The command line's help, completion, and its end when it is interrupted."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from ragboost.cli import app

ROOT = Path(__file__).parents[1]


def commands(group: TyperGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


ALL = list(commands(cast("TyperGroup", get_command(app))))


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_help_shows_flags_as_flags(command: tuple[str, ...]) -> None:
    help_text = CliRunner().invoke(app, [*command, "--help"]).output
    assert "--help" in help_text
    assert not re.search(r"<?bool", help_text, flags=re.IGNORECASE)


def test_shells_can_complete() -> None:
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).output


def test_an_interrupt_while_the_command_line_is_loaded_is_one_line() -> None:
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from ragboost.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "ragboost: interrupted\n")
