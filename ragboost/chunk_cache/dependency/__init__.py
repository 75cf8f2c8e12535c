"""Dependency attention over the relation paths of a graph, and reuse of its KV (DepCache).

Start at `prompt.DepPrompt` and `depkv.DepCache`. Importing this package does not load torch.
"""
