"""Keep the finished windows of a batch job, so that an interrupted job can go on.

Three files grow beside the output under temporary names. After each window a fourth says how long
they are and where the next window begins.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from pydantic import TypeAdapter

from ragboost.batch.catalog import FILE_START, FilePlace
from ragboost.batch.summary import BatchSummary
from ragboost.errors import RequestError


class RejectedLinesError(RequestError):
    """A strict job found malformed lines, or any job nothing else."""


class Checkpoint(NamedTuple):
    place: FilePlace  # where the next window begins in the input
    summary: BatchSummary  # of the windows before


class _State(NamedTuple):
    fingerprint: str  # of the job
    sizes: list[int]  # of the growing files
    checkpoint: Checkpoint


_STATE = TypeAdapter(_State)


def checkpoint_path(output: Path) -> Path:
    return output.parent / f".{output.name}.checkpoint"


def last_checkpoint(output: Path) -> Checkpoint | None:
    """Return where an interrupted job would go on; None if there is none."""
    state = _read(checkpoint_path(output))
    return None if state is None else state.checkpoint


class GrowingFiles:
    """The output, its positions and its rejects while they grow: complete or absent after it.

    After an error they are deleted, unless there is a checkpoint for `resume` to go on from.
    """

    def __init__(
        self, paths: Sequence[Path], *, fingerprint: str, resume: bool, start: BatchSummary
    ) -> None:
        self._paths = paths
        self._parts = [path.with_name(f".{path.name}.part") for path in paths]
        self._state = checkpoint_path(paths[0])
        self._fingerprint = fingerprint
        self.files: list[BinaryIO] = []  # open files, in the order of `paths`
        self.checkpoint = Checkpoint(FILE_START, start)  # where the job begins
        sizes = self._read_state() if resume else None
        if sizes is None:
            self._state.unlink(missing_ok=True)
        try:
            for path, size in zip(self._parts, sizes or [0] * len(paths), strict=True):
                self.files.append(_open_at(path, size))
        except OSError as error:
            self._close()
            raise RequestError(f"cannot write {error.filename}: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        is_kept = error is not None and self._state.exists()
        self._close()
        if not is_kept:
            for path in (*self._parts, self._state):
                path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            name = error.filename or self._paths[0]
            raise RequestError(f"cannot write {name}: {error.strerror}") from None

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep what has been written so far, for a job that resumes."""
        for file in self.files:
            file.flush()
            os.fsync(file.fileno())
        state = _State(self._fingerprint, [file.tell() for file in self.files], checkpoint)
        temporary = self._state.with_name(f"{self._state.name}.tmp")
        data = _STATE.dump_json(state)
        temporary.write_bytes(_digest(data) + data)
        temporary.replace(self._state)

    def finish(self, summary: BatchSummary, *, source: Path, is_strict: bool) -> None:
        """Give the files their names. A strict job with rejects fails and has only these, as does
        one whose lines are all malformed."""
        has_failed = summary.rejected > 0 and (is_strict or not summary.requests)
        for number in [2] if has_failed else range(len(self._paths)):
            self.files[number].close()
            self._parts[number].replace(self._paths[number])
        if has_failed:
            raise RejectedLinesError(f"{source}: {summary.rejects_sentence(self._paths[2])}")

    def forget(self) -> None:
        """Delete the checkpoint: there is nothing to go on from."""
        self._state.unlink(missing_ok=True)

    def _read_state(self) -> list[int] | None:
        state = _read(self._state)
        if state is None:
            return None
        if state.fingerprint != self._fingerprint:
            raise RequestError(
                f"{self._state} is of a job with another input, other settings or other options: "
                "repeat these, or start without --resume"
            )
        for path, size in zip(self._parts, state.sizes, strict=True):
            if not path.exists() or path.stat().st_size < size:
                raise RequestError(f"{path} is incomplete: start without --resume")
        self.checkpoint = state.checkpoint
        return state.sizes

    def _close(self) -> None:
        for file in self.files:
            file.close()


def _read(path: Path) -> _State | None:
    try:
        written = path.read_bytes()
        data = written[len(_digest(b"")) :]
        if written != _digest(data) + data:
            raise ValueError
        return _STATE.validate_json(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not the state of a batch job"
        raise RequestError(f"cannot read {path}: {reason}; delete it") from None


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode() + b"\n"


def _open_at(path: Path, size: int) -> BinaryIO:
    file = path.open("r+b" if size else "wb")
    file.truncate(size)
    file.seek(size)
    return file
