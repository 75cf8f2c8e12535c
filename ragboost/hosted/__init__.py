"""Prompt caches of hosted APIs: prices, receipts, breakpoints, stable order, and a linter of logs.

Knows request bodies and reported usage. Does not know HTTP.
"""
