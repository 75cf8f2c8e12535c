"""Measurements of the project, each runnable as `python -m benchmarks.NAME`."""
