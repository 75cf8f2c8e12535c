"""What an engine tells about its prefix cache: KV events, in-engine reports, usage.

Needs msgspec and pyzmq only, so that it installs beside an engine. Knows blocks, tokens and request
ids; does not know documents, HTTP routes or the context index.
"""
