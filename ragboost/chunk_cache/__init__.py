"""Reuse the KV of documents that are cached but not at a prefix (FusionRAG, A3, Cache-Craft), in
the processes of vLLM, SGLang and the embedded engine. Importing it does not load torch."""
