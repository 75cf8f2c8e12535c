"""Compute the KV of a corpus offline, each chunk after those it is likely to be retrieved with
(FusionRAG's preprocessing).

Start at `prime.prime` for a chunk and `corpus.precompute` for a corpus. Importing this package does
not load torch.
"""
