"""A random driver over the whole ASGI application, with an oracle that shares no code with it."""
