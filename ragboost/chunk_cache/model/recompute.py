"""Recompute selected tokens of a prompt over the stored KV of the others.

Knows positions and caches. Does not know how the tokens were selected.
"""

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
    """Compute rows layer by layer, each over all earlier keys, a piece per step.

    The rows of a layer see each other's new keys and values: the result for every row is that of a
    token-by-token loop over the same cache. A pass begins with `assembly.hidden`, unless an
    observer needs to see every layer.

    Returns:
        Logits of the last row, (vocabulary,); None if there is none, or if the observer stopped
        the pass.
    """
    logits = None
    for piece in (pace or Pace()).pieces(rows):
        tokens = [assembly.tokens[position] for position in piece.tolist()]
        begin = assembly.begin(piece) if observe is None else None
        plan = ForwardPlan(piece, backend=backend, observe=observe, begin=begin)
        logits = model.forward(tokens, assembly.cache, plan=plan)
        yield len(piece)
    return logits
