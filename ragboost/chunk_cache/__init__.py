"""Reuse the KV of documents that are cached but are no prefix hit (FusionRAG, A3, CacheBlend,
EPIC).

The door is `ragboost.chunk_cache.reuse.ChunkReuse`. Importing this package loads no torch.
"""
