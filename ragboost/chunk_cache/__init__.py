"""Reuse the KV of documents that are cached but not at a prefix (FusionRAG, A3, CacheBlend, EPIC).

Start at `ragboost.chunk_cache.reuse.ChunkReuse`. Importing this package does not load torch.
"""
