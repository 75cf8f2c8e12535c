"""The OpenAI-compatible server in front of a backend."""
