"""Print an engine's flags for chunk reuse where only `ragboost` itself is installed.

    python -m ragboost.engine_chunks vllm reuse=approx ratio=0.15

As `ragboost engine-flags`, which needs more packages.
"""

import sys

from ragboost.engine_chunks.flags import engine_flags
from ragboost.errors import RagBoostError


def main(arguments: list[str]) -> int:
    """Print the flags; return the exit code."""
    try:
        flags = engine_flags(arguments[0] if arguments else "", arguments[1:])
    except RagBoostError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(flags + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
