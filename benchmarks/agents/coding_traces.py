"""Generate sessions of a coding agent: it reads real files, edits them, and reads them again.

Deterministic for a seed and the same files. Knows tools and their results. Does not know requests.
"""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

_FILE_BYTES = range(4_000, 16_000)
_CONTEXT_LINES = 4
_RANGE_LINES = 120


class Step(NamedTuple):
    """A tool call of the agent, and the tool's result."""

    tool: str
    arguments: Mapping[str, str]
    result: str


def read_files(folder: Path) -> dict[str, str]:
    """Return the folder's Python files of ordinary size, by path."""
    found = {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.py"))
    }
    return {name: text for name, text in found.items() if len(text) in _FILE_BYTES}


def generate_session(
    files: Mapping[str, str], *, style: str, seed: int, num_steps: int, num_files: int = 4
) -> list[Step]:
    """Draw a session over `num_files` of the files.

    Of the steps about 40 % read a file, 30 % edit one (half of them read it again at once to see
    the edit), and 30 % search the files or run the tests. The style, one of STYLES, is how files
    are shown.
    """
    choose = random.Random(seed)
    names = choose.sample(sorted(files), num_files)
    work = _Work(choose, {name: files[name].splitlines() for name in names}, STYLES[style])
    steps: list[Step] = []
    while len(steps) < num_steps:
        name = choose.choice(names)
        kind = choose.random()
        if kind < 0.4 or name not in work.seen:
            steps.append(work.read(name))
        elif kind < 0.7:
            steps.append(work.edit(name))
            if choose.random() < 0.5:
                steps.append(work.read(name))
        elif kind < 0.85:
            steps.append(work.search())
        else:
            steps.append(work.test(name))
    return steps[:num_steps]


class _Work:
    """The files of a session as they are now."""

    def __init__(
        self,
        choose: random.Random,
        files: dict[str, list[str]],
        show: Callable[[list[str], random.Random], str],
    ) -> None:
        self.seen: set[str] = set()
        self._choose = choose
        self._files = files
        self._show = show
        self._num_edits = 0

    def read(self, name: str) -> Step:
        """Show a file."""
        self.seen.add(name)
        return Step("read", {"path": name}, self._show(self._files[name], self._choose))

    def edit(self, name: str) -> Step:
        """Replace a line, or insert or delete a few; return the lines around, as tools do."""
        lines, choose = self._files[name], self._choose
        at = choose.randrange(len(lines))
        self._num_edits += 1
        mark = f"{' ' * 4}# edit {self._num_edits} of {choose.randrange(10**6)}"
        old = lines[at]
        match choose.randrange(3):
            case 0:
                lines[at] = f"{old}{mark}"
            case 1:
                lines[at:at] = [f"{mark}, line {i}" for i in range(choose.randint(1, 6))]
            case _:
                del lines[at : at + choose.randint(1, 4)]
                lines[at:at] = [mark]
        around = lines[max(at - _CONTEXT_LINES, 0) : at + _CONTEXT_LINES]
        return Step("edit", {"path": name, "old": old, "new": mark}, "\n".join(["Done.", *around]))

    def search(self) -> Step:
        """List the lines with a word."""
        word = self._choose.choice(("return", "import", "def ", "self.", "class "))
        found = [
            f"{name}:{number}:{line}"
            for name, lines in self._files.items()
            for number, line in enumerate(lines, 1)
            if word in line
        ]
        return Step("search", {"word": word}, "\n".join(found[:40]))

    def test(self, name: str) -> Step:
        """Run the tests: one fails, with the lines around the failure."""
        lines = self._files[name]
        at = self._choose.randrange(len(lines))
        around = lines[max(at - _CONTEXT_LINES, 0) : at + 1]
        failure = f"{name}:{at + 1}: AssertionError {self._choose.randrange(10**6)}"
        return Step("test", {"path": name}, "\n".join(["FAILED", *around, failure]))


def _plain(lines: list[str], choose: random.Random) -> str:
    return "\n".join(lines) + "\n"


def _numbered(lines: list[str], choose: random.Random) -> str:
    return "".join(f"{number:6}\t{line}\n" for number, line in enumerate(lines, 1))


def _ranges(lines: list[str], choose: random.Random) -> str:
    start = choose.randrange(max(len(lines) - _RANGE_LINES // 2, 1))
    return "\n".join(lines[start : start + _RANGE_LINES]) + "\n"


STYLES: Mapping[str, Callable[[list[str], random.Random], str]] = {
    "plain": _plain,
    "numbered": _numbered,
    "ranges": _ranges,
}
"""Whole files, whole files with line numbers, and 120 lines from somewhere in the file."""
