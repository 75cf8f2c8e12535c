"""The processes that hold a model together, each with some of its attention heads. Whatever is
chosen must be chosen by all: a rank that computes other tokens waits for the rest forever."""

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import distributed

from ragboost.errors import ChunkCacheError

T = TypeVar("T")


class Ranks:
    """The ranks of one model, of which all call every method in the same order: one."""

    size, rank = 1, 0  # `rank`: of this process

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return values

    def agree(self, is_fine: bool) -> bool:
        return is_fine

    def same(self, value: object) -> bool:
        return True

    def joined(self, digest: str) -> str:
        return digest


class GroupRanks(Ranks):
    """The ranks of a `torch.distributed` group for tensors in host memory."""

    def __init__(self, group: Any) -> None:
        self.size = int(distributed.get_world_size(group))
        self.rank = int(distributed.get_rank(group))
        self._group = group

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        total = values.to("cpu", torch.float32, copy=True)
        distributed.all_reduce(total, group=self._group)
        return total.to(values.device)

    def agree(self, is_fine: bool) -> bool:
        return self._lowest([int(is_fine)]) == [1]

    def same(self, value: object) -> bool:
        digest = hashlib.sha256(repr(value).encode()).digest()
        number = int.from_bytes(digest[:7])
        lowest, negated_highest = self._lowest([number, -number])
        return lowest == -negated_highest

    def joined(self, digest: str) -> str:
        mine = hashlib.sha256(digest.encode()).digest()
        words = torch.frombuffer(bytearray(mine), dtype=torch.int64)
        table = torch.zeros(self.size, len(words), dtype=torch.int64)
        table[self.rank] = words
        distributed.all_reduce(table, group=self._group)
        return hashlib.sha256(table.numpy().tobytes()).hexdigest()[:32]

    def _lowest(self, numbers: list[int]) -> list[int]:
        found = torch.tensor(numbers)
        distributed.all_reduce(found, op=distributed.ReduceOp.MIN, group=self._group)
        lowest: list[int] = found.tolist()
        return lowest


ONE_RANK = Ranks()


def together(ranks: Ranks, work: Callable[[], T]) -> T:
    """Return the result of something that each rank does by itself."""
    try:
        result = work()
    except Exception:
        ranks.agree(False)
        raise
    if not ranks.agree(True):
        raise ChunkCacheError("another rank failed")
    return result
