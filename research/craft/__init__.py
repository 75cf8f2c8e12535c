"""Cache-Craft's versions of chunks, partly recomputed.

Start at `research.craft.reuse.CraftReuse`. Importing this package does not load torch. Not served:
see docs/lab/cache-craft.md for the figures.
"""
