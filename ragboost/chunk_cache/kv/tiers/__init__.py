"""Chunk KV on an accelerator, in host memory and on disk, behind the interface `KVStore`."""
