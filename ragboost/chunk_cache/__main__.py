"""Write an engine's configuration for chunk reuse, in the environment of the engine.

python -m ragboost.chunk_cache vllm reuse=approx --config reuse.yaml
python -m ragboost.chunk_cache vllm reuse=approx    # prints the flags
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.sglang.flags import sglang_flags
from ragboost.chunk_cache.vllm.flags import vllm_flags
from ragboost.errors import ConfigError, RagBoostError
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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m ragboost.chunk_cache")
    parser.add_argument("engine", help="vllm or sglang")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE")
    parser.add_argument(
        "--config", type=Path, metavar="FILE.yaml", help="write a file for the engine's --config"
    )
    try:
        options = parser.parse_intermixed_args(arguments)
    except SystemExit as stop:
        if stop.code:
            sys.stdout.write(FAILED_FLAG + "\n")
        raise
    try:
        if options.config is None:
            sys.stdout.write(engine_flags(options.engine, options.settings) + "\n")
        else:
            _write(options.config, engine_config(options.engine, options.settings))
    except (OSError, RagBoostError) as error:
        sys.stderr.write(f"ragboost: {error}\n")
        sys.stdout.write(FAILED_FLAG + "\n")
        return 2
    return 0


def _write(path: Path, text: str) -> None:
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--config must end in .yaml, as the engines require, got {str(path)!r}")
    path.write_text(text, "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
