"""Save finished parts of a long benchmark, so that an interrupted run can resume."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def part(directory: Path | None, name: str, make: Callable[[], list[Any]]) -> list[Any]:
    """Return a part's rows: read from its file if finished before, else made and written.

    The name must tell every option that affects the rows, which are JSON. Without a directory
    nothing is saved.
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
