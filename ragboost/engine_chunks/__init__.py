"""Reuse chunks inside an unmodified vLLM or SGLang, by its public extension points.

Runs in the engine's processes, where only torch, numpy, msgspec and pyzmq are certain to be
installed. Knows one engine in the package that bears its name. Does not know the proxy.
"""
