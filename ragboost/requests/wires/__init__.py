"""The APIs whose bodies the proxy reads: one file per API says where messages, texts and usage are.

`registry` lists them; `body` and `usage` read by what they say. Knows decoded JSON. Does not know
documents, settings or bytes. A new body shape is a new file here and a line in `registry`.
"""
