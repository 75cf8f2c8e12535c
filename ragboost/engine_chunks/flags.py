"""Write the flags that switch chunk reuse on in an engine, ready for a shell."""

import json
import shlex
from collections.abc import Sequence

from ragboost.engine_chunks.settings import EngineChunkSettings
from ragboost.engine_chunks.sglang.flags import sglang_flags
from ragboost.engine_chunks.vllm.flags import vllm_flags
from ragboost.errors import ConfigError

ENGINES = {"vllm": vllm_flags, "sglang": sglang_flags}


def engine_flags(engine: str, assignments: Sequence[str]) -> str:
    """Return the flags as one line, quoted for a shell.

    Args:
        engine: one of `ENGINES`.
        assignments: settings as `name=value`, see `EngineChunkSettings`.

    Raises:
        ConfigError: an unknown engine or setting, or a value out of range.
    """
    if engine not in ENGINES:
        raise ConfigError(f"the engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    settings = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"settings are written name=value, got {assignment!r}")
        settings[name] = _value(value)
    EngineChunkSettings.read(settings)
    return shlex.join(ENGINES[engine](settings))


def _value(text: str) -> str | int | float:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text
