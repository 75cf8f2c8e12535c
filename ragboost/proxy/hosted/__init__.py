"""Prompt caches: stable order, and why one missed.

Knows request bodies and reported usage. Does not know HTTP.
"""
