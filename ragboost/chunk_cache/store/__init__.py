"""Stored chunk KV: in memory, on disk and in a remote store."""
