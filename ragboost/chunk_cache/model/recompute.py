"""Recompute selected tokens of a prompt over the stored KV of the others.

Knows positions and caches. Does not know how the tokens were selected.
"""

import torch

from ragboost.chunk_cache.model.assemble import Assembly, TokenSource
from ragboost.chunk_cache.model.attention.backend import AttentionBackend
from ragboost.chunk_cache.model.pace import AT_ONCE, Pace
from ragboost.chunk_cache.model.plan import ForwardPlan, Observer
from ragboost.chunk_cache.model.reusable_model import ReusableModel


def rows_to_compute(assembly: Assembly, selected: torch.Tensor) -> torch.Tensor:
    """Return the positions of missing and selected tokens and the question, ascending. Exact tokens
    are excluded even if selected."""
    chosen = assembly.source == TokenSource.MISSING
    chosen[selected] = True
    chosen &= assembly.source != TokenSource.EXACT
    return torch.nonzero(chosen).flatten()


def recompute(
    adapter: ReusableModel,
    assembly: Assembly,
    *,
    selected: torch.Tensor,
    backend: AttentionBackend | None = None,
    observe: Observer | None = None,
    pace: Pace = AT_ONCE,
) -> torch.Tensor:
    """Compute the missing and selected tokens layer by layer, each row over all earlier keys.

    The rows of a layer see each other's new keys and values: the result for every row is that of a
    token-by-token loop over the same cache. The pass begins with `assembly.hidden`, unless an
    observer needs to see every layer.

    Returns:
        Logits of the last token, (vocabulary,).
    """
    logits = None
    for rows in pace.pieces(rows_to_compute(assembly, selected)):
        tokens = [assembly.tokens[position] for position in rows.tolist()]
        begin = assembly.begin(rows) if observe is None else None
        plan = ForwardPlan(rows, backend=backend, observe=observe, begin=begin)
        logits = adapter.forward(tokens, assembly.cache, plan=plan)
    if logits is None:
        raise AssertionError("nothing was computed, or the observer stopped the final pass")
    return logits
