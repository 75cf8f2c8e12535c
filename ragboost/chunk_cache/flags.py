"""Write the flags that switch chunk reuse on in an engine: for a shell, or as a config file."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.sglang.flags import sglang_flags
from ragboost.chunk_cache.vllm.flags import vllm_flags
from ragboost.errors import ConfigError
from ragboost.util.jsonl import json_value

ENGINES = {"vllm": vllm_flags, "sglang": sglang_flags}

# Printed instead of flags: a shell line that ignores the exit code fails at an unknown flag.
FAILED_FLAG = "--ragboost-flags-failed"

_EVENTS = {
    "publisher": "zmq",
    "endpoint": "tcp://*:5557",
    "replay_endpoint": "tcp://*:5657",
}
_BESIDE_REUSE: dict[str, dict[str, Any]] = {
    "vllm": {
        "enable-prompt-tokens-details": True,
        "kv-events-config": {"enable_kv_cache_events": True, **_EVENTS},
    },
    # SGLang reads the value of this flag as JSON text.
    "sglang": {
        "enable-cache-report": True,
        "page-size": 16,
        "kv-events-config": json.dumps(_EVENTS),
    },
}


def engine_flags(engine: str, assignments: Sequence[str]) -> str:
    """Return the flags for settings `name=value` as one line, quoted for a shell."""
    return shlex.join(_flags(engine, assignments))


def engine_config(engine: str, assignments: Sequence[str]) -> str:
    """Return the text of a file for the engine's `--config`, which switches on chunk reuse, cache
    events and cached tokens in `usage`. It is JSON, which is YAML too."""
    flags = _flags(engine, assignments)
    reuse = {
        name.removeprefix("--"): text for name, text in zip(flags[::2], flags[1::2], strict=True)
    }
    return json.dumps({**_BESIDE_REUSE[engine], **reuse}, indent=2) + "\n"


def _flags(engine: str, assignments: Sequence[str]) -> list[str]:
    if engine not in ENGINES:
        raise ConfigError(f"the engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    settings: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"settings are written name=value, got {assignment!r}")
        number = json_value(value)
        settings[name] = number if isinstance(number, int | float) else value
    EngineChunkSettings.read(settings)
    return ENGINES[engine](settings)
