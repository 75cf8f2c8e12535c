"""The ranks of vLLM's tensor parallelism, as `chunk_cache` sees them.

Uses the group's channel on the host: what ranks tell each other here is small.
"""

from typing import Any

import torch
from torch import distributed
from vllm.distributed.parallel_state import get_tp_group

from ragboost.chunk_cache.model.ranks import ONE_RANK, Ranks


class TensorRanks:
    """The ranks of a model that several workers hold. See `Ranks`."""

    def __init__(self) -> None:
        group = get_tp_group()
        self.size = int(group.world_size)
        self._group = group.cpu_group

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        total = values.to("cpu", torch.float32, copy=True)
        distributed.all_reduce(total, group=self._group)
        return total.to(values.device)

    def agree(self, is_fine: bool) -> bool:
        votes = torch.tensor([int(is_fine)])
        distributed.all_reduce(votes, op=distributed.ReduceOp.MIN, group=self._group)
        return bool(votes.item())


def find_ranks(config: Any) -> Ranks:
    """Return the ranks of this worker's model."""
    return TensorRanks() if config.parallel_config.tensor_parallel_size > 1 else ONE_RANK
