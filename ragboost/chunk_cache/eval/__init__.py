"""Measure what reuse costs in quality and saves in time, on synthetic tasks or a user's own
prompts."""
