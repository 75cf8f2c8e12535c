"""Cache-Craft's versions of chunks, partly recomputed.

Start at `research.craft.reuse.CraftReuse`. Importing this package does not load torch.
An experiment: no engine serves it.
"""
