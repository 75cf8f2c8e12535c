"""Write an engine's configuration for chunk reuse, in the environment of the engine.

python -m ragboost.chunk_cache vllm reuse=approx --config reuse.yaml
python -m ragboost.chunk_cache vllm reuse=approx    # prints the flags
"""

import argparse
import sys
from pathlib import Path

from ragboost.chunk_cache.flags import FAILED_FLAG, engine_config, engine_flags
from ragboost.errors import ConfigError, RagBoostError


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
