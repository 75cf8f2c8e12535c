"""Tell the API server's process why the engine's process cannot reuse chunks.

One small file for each engine, in the user's temporary directory, named after the engine.
"""

import os
import re
import tempfile
from pathlib import Path

import msgspec

from ragboost.errors import RagBoostError

_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
STARTING = "the engine has not checked itself yet"


def start_failure(error: Exception) -> str:
    """Return why reuse is off after an error at its start, as a reason and its explanation."""
    if isinstance(error, RagBoostError):
        return f"self_test: {error}"
    return f"engine_internals: {type(error).__name__}: {error}"


def write_status(instance: str, refusal: str | None) -> None:
    """Publish why chunks cannot be reused; None: they can.

    Args:
        instance: the engine's name.
        refusal: one sentence.
    """
    path = _path(instance)
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), "wb") as file:
        file.write(msgspec.json.encode({"refusal": refusal}))


def remove_status(instance: str) -> None:
    """Remove what an engine published, when it ends."""
    _path(instance).unlink(missing_ok=True)


def read_status(instance: str) -> str | None:
    """Return why an engine cannot reuse chunks; None: it can."""
    path = _path(instance)
    try:
        if path.lstat().st_uid != os.getuid():
            return f"{path.name} belongs to another user"
        told = msgspec.json.decode(path.read_bytes(), type=dict[str, str | None])
    except (OSError, msgspec.DecodeError):
        return STARTING
    return told.get("refusal")


def _path(instance: str) -> Path:
    if not _NAME.fullmatch(instance):
        raise ValueError(f"not the name of an engine: {instance!r}")
    return Path(tempfile.gettempdir(), f"ragboost-engine-{instance}.json")
