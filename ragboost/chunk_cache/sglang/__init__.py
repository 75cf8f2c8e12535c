"""Chunk reuse inside SGLang: a radix cache backend that fills prompts from stored chunks."""
