"""Run the command line, also as `python -m ragboost`."""

import sys


def main() -> None:
    """Run the command line; end with one line if it is interrupted, even while it is loaded."""
    try:
        from ragboost.cli import main as run  # takes a moment

        run()
    except KeyboardInterrupt:
        sys.stderr.write("ragboost: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
