"""Lengths of documents in tokens: estimated at first, exact once counted."""

from ragboost.booster.tokens.counter import DEFAULT_TOKENS_PER_BYTE, TokenCounter, Wanted, num_bytes
from ragboost.booster.tokens.local import make_counter, make_offline_counter

__all__ = [
    "DEFAULT_TOKENS_PER_BYTE",
    "TokenCounter",
    "Wanted",
    "make_counter",
    "make_offline_counter",
    "num_bytes",
]
