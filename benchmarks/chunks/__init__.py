"""Reuse of chunks' KV: quality, time and storage, in transformers and the embedded engine."""
