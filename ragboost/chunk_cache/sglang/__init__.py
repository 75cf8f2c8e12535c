"""Chunk reuse inside SGLang: a radix cache backend that fills prompts from stored chunks.

Selected by `--radix-cache-backend`, see `flags`. Runs in SGLang's environment.
"""
