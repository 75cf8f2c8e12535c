"""Compute the KV of a corpus offline, each chunk after those it is likely to be retrieved with
(FusionRAG's preprocessing). Importing this package does not load torch."""
