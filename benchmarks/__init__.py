"""Benchmarks of the project, each run as `python -m benchmarks.NAME`.

Every module's docstring says what it measures, in which units and how; `--help` prints it. `--json`
prints one JSON object in place of the tables.
"""
