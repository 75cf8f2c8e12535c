"""Follow the engines' prefix caches from outside, and keep the context indexes in step with them.

Knows event streams, request ids and where documents are in a prompt. Does not know routes or any
web framework.
"""
