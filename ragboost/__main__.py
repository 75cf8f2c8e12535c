"""Run the command line as `python -m ragboost`."""

from ragboost.cli import main

if __name__ == "__main__":
    main()
