"""Measure the influence of other chunks on a stored one, computed behind them, for Cache-Craft.
Does not know stores."""

from collections.abc import Iterable

import torch

from ragboost.chunk_cache.model.assemble import Assembly
from ragboost.chunk_cache.model.attention.backend import AttentionBackend
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.model.reusable_model import ReusableModel
from ragboost.chunk_cache.selection.influence_observer import InfluenceObserver
from ragboost.chunk_cache.store.influence import Influence


def measure_last_chunk(
    model: ReusableModel, assembly: Assembly, *, backend: AttentionBackend | None
) -> Influence:
    """Compute the last chunk over the KV of all before it, in place of its own (Cache-Craft eq. 9,
    10; FusionRAG eq. 10)."""
    number = len(assembly.chunks) - 1
    start, stop = assembly.chunks[number]
    observer = InfluenceObserver(assembly.tokens, assembly.chunks, watched=[number])
    rows = torch.arange(start, stop, device=model.device)
    plan = ForwardPlan(rows, backend=backend, observe=observer)
    model.forward(assembly.tokens[start:stop], assembly.cache, plan=plan)
    return observer.influences()[number]


def largest_error(got: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> float:
    errors = [
        (tensor.float() - other.float()).abs().max() / other.float().abs().max()
        for tensor, other in zip(got, expected, strict=True)
    ]
    return float(torch.stack(errors).max())  # not a number if one is
