"""Chunk reuse inside an engine's own processes: what to reuse of a prompt, and how to fill its KV.

Needs torch, msgspec and safetensors, which engines bring, so that it installs beside them with
`--no-deps`. The files here know no engine; each folder fits one.
"""
