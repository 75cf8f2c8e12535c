"""Save finished parts of a long benchmark, so that an interrupted run can resume."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def part(directory: Path | None, name: str, make: Callable[[], list[Any]]) -> list[Any]:
    """Return a part's rows: read from its file if finished before, else computed and written.

    Args:
        directory: folder of the files; None saves nothing.
        name: part name; must encode every option that affects the rows.
        make: returns the rows, which must be JSON-serialisable.
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
