"""The processes that hold a model together, each with some of its attention heads (tensor
parallelism).

A measurement over heads is a sum over ranks, and whatever is chosen must be chosen by all: a rank
that computes other tokens than the rest waits for them forever. Does not know an engine.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from ragboost.errors import ChunkCacheError

T = TypeVar("T")


class Ranks(Protocol):
    """The ranks of one model. All of them call every method in the same order.

    Attributes:
        size: number of ranks.
    """

    size: int

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor over the ranks, equal on all of them."""
        ...

    def agree(self, is_fine: bool) -> bool:
        """Return True on every rank if all are fine."""
        ...


class OneRank:
    """The ranks of a model in one process."""

    size = 1

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return values

    def agree(self, is_fine: bool) -> bool:
        return is_fine


ONE_RANK = OneRank()


def together(ranks: Ranks, work: Callable[[], T]) -> T:
    """Return the result of something that each rank does by itself.

    Raises:
        ChunkCacheError: it failed on another rank.
        Exception: it failed on this one.
    """
    try:
        result = work()
    except Exception:
        ranks.agree(False)
        raise
    if not ranks.agree(True):
        raise ChunkCacheError("another rank failed")
    return result
