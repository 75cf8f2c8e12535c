"""Chunk reuse inside vLLM: the connector salts the block hashes of approximate tokens and fills
their KV by a nested pass; vLLM prefills the rest of the prompt and decodes as ever."""
