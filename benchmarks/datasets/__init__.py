"""Requests for benchmarks: generated, and read from disk."""
