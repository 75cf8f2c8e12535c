"""Turn the body of a request into what the backend is sent: documents found, ordered, written back.

Knows bodies, conversations and tenants. Does not know HTTP or backends.
"""
