"""Dependency attention over the relation paths of a graph, and reuse of its KV (DepCache).

The doors are `prompt.DepPrompt` and `depkv.DepCache`. Importing this package loads no torch.
"""
