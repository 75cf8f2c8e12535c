"""The files of a batch job, checked before it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from ragboost.errors import RequestError

_GZIP = b"\x1f\x8b"


def side_path(output: Path, name: str) -> Path:
    """Return the path beside an output: `OUT.jsonl` and `positions` give `OUT.positions.jsonl`."""
    stem = output.name.removesuffix(".jsonl")
    return output.parent / f"{stem}.{name}.jsonl"  # the output may be ".", which has no name


@contextmanager
def open_input(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file that is not compressed."""
    try:
        if path.exists() and not path.is_file():
            raise RequestError(f"{path} must be a regular file")
        file = path.open("rb")
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from None
    with file:
        if file.read(2) == _GZIP:
            raise RequestError(f"{path} is compressed: unpack it first")
        file.seek(0)
        yield file


@contextmanager
def new_files(*paths: Path) -> Iterator[list[BinaryIO]]:
    """Open files that replace those of the same names when the block ends, and not after an error.

    Raises:
        RequestError: one cannot be written.
    """
    parts = [path.with_name(f".{path.name}.part") for path in paths]
    try:
        with ExitStack() as files:
            yield [files.enter_context(part.open("wb")) for part in parts]
        for part, path in zip(parts, paths, strict=True):
            part.replace(path)
    except OSError as error:
        name = error.filename or paths[0]
        raise RequestError(f"cannot write {name}: {error.strerror}") from None
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def output_paths(output: Path, *, inputs: Sequence[Path]) -> list[Path]:
    paths = [output, side_path(output, "positions"), side_path(output, "rejects")]
    for path in paths:
        check_output(path, inputs=inputs)
    return paths


def check_output(path: Path, *, inputs: Sequence[Path]) -> None:
    """Check before the work that a file can be written, and overwrites no input."""
    check_not_input(path, inputs=inputs)
    if path.exists() and not path.is_file():
        raise RequestError(f"cannot write {path}: not a regular file")
    if not path.parent.is_dir():
        raise RequestError(f"cannot write {path}: {path.parent} is not a directory")


def check_not_input(path: Path, *, inputs: Sequence[Path]) -> None:
    for source in inputs:
        if path.exists() and source.exists() and path.samefile(source):
            raise RequestError(f"{path} is an input of the job: give another output")
