"""Stored chunk KV: in memory, in tiers and on disk, behind the interface `KVStore`."""
