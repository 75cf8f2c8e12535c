"""Recompute selected tokens of a prompt over the stored KV of the others."""

import torch

from ragboost.chunk_cache.model.assemble import Assembly
from ragboost.chunk_cache.model.attention.backend import AttentionBackend
from ragboost.chunk_cache.model.pace import Pace, Steps
from ragboost.chunk_cache.model.plan import ForwardPlan, Observer
from ragboost.chunk_cache.model.reusable_model import ReusableModel


def recompute(
    model: ReusableModel,
    assembly: Assembly,
    rows: torch.Tensor,
    *,
    backend: AttentionBackend | None = None,
    observe: Observer | None = None,
    pace: Pace | None = None,
) -> Steps[torch.Tensor | None]:
    """Compute rows layer by layer, each over all earlier keys, a piece per step, as a
    token-by-token loop would; return the last row's logits, unless an observer stopped the pass.
    Without one a pass begins with `assembly.hidden`."""
    logits = None
    for piece in (pace or Pace()).pieces(rows):
        tokens = [assembly.tokens[position] for position in piece.tolist()]
        begin = assembly.begin(piece) if observe is None else None
        plan = ForwardPlan(piece, backend=backend, observe=observe, begin=begin)
        logits = model.forward(tokens, assembly.cache, plan=plan)
        yield len(piece)
    return logits
