"""Reuse the KV of documents that are cached but not at a prefix (FusionRAG, A3, Cache-Craft).

Runs in the processes of vLLM, of SGLang and of the embedded engine. Importing it does not load
torch.
"""
