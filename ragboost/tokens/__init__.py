"""Lengths of documents in tokens: estimated at first, exact once counted."""

from ragboost.tokens.counter import TokenCounter, Wanted
from ragboost.tokens.local import make_counter, make_offline_counter

__all__ = ["TokenCounter", "Wanted", "make_counter", "make_offline_counter"]
