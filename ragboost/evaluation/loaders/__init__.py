"""Readers of question files, one file per data set.

Each has `matches(row)`, which recognises the format by its first record, and `parse(row, pools)`.
"""
