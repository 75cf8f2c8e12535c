"""Cache-Craft: chunk KV in the variants of the contexts it was used in, partly recomputed.

Start at `ragboost.chunk_cache.craft.reuse.CraftReuse`. Importing this package does not load torch.
"""
