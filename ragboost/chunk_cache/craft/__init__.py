"""Measurements of Cache-Craft on chunks: attention to other chunks, and the KV that it changed.

The versions of chunks are in `research.craft`. Importing this package does not load torch.
"""
