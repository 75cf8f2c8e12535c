"""Cache-Craft: chunk KV kept in the contexts it was used in, and how much of it must be fixed.

The door is `ragboost.chunk_cache.craft.reuse.CraftReuse`. Importing this package loads no torch.
"""
