"""Chunk reuse inside vLLM, switched on by `--worker-cls` and `--kv-transfer-config`.

The connector salts the block hashes of approximate tokens and fills their KV by a nested forward
pass; vLLM prefills the rest of the prompt and decodes as ever.
"""
