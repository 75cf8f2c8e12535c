"""Keep the parts of a long benchmark as they are finished, so that it can be stopped and go on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def part(directory: Path | None, name: str, make: Callable[[], list[Any]]) -> list[Any]:
    """Return a part's rows, from its file where it was finished before, else made and written.

    Args:
        directory: of the files; None: keep nothing.
        name: of the part; it must say everything that decides the rows.
        make: returns the rows, which are JSON.
    """
    if directory is None:
        return make()
    file = directory / f"{name}.json"
    if file.exists():
        return list(json.loads(file.read_text()))
    rows = make()
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(rows))
    unfinished.rename(file)
    return rows
