"""Lengths of documents in tokens: exact where somebody has counted them, estimated until then."""

from ragboost.tokens.background import make_counter
from ragboost.tokens.counter import TokenCounter, Wanted, estimate_tokens

__all__ = ["TokenCounter", "Wanted", "estimate_tokens", "make_counter"]
