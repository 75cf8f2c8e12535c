"""Compute chosen tokens of a prompt again, over KV that is known of the others.

Knows positions and caches. Does not know how the tokens were chosen.
"""

import torch

from ragboost.chunk_cache.assemble import Assembly, TokenSource
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.attention.base import AttentionBackend
from ragboost.chunk_cache.model.hook import ForwardPlan, Observer
from ragboost.chunk_cache.pace import AT_ONCE, Pace


def rows_to_compute(assembly: Assembly, selected: torch.Tensor) -> torch.Tensor:
    """Return the positions of missing tokens, selected ones and the question, ascending.

    Exact tokens are never among them, whatever was selected.
    """
    chosen = assembly.source == TokenSource.MISSING
    chosen[selected] = True
    chosen &= assembly.source != TokenSource.EXACT
    return torch.nonzero(chosen).flatten()


def recompute(
    adapter: ModelAdapter,
    assembly: Assembly,
    *,
    selected: torch.Tensor,
    backend: AttentionBackend | None = None,
    observe: Observer | None = None,
    pace: Pace = AT_ONCE,
) -> torch.Tensor:
    """Compute what is missing or selected, layer by layer, each row over all keys before it.

    Rows of one layer see each other's new keys and values: the result for every row is what a token
    by token loop over the same cache would give. The pass begins where choosing the rows has come
    to, unless an observer wants to see every layer.

    Returns:
        The logits of the last token, (vocabulary,).
    """
    logits = None
    hidden = assembly.hidden if observe is None else None
    for rows in pace.pieces(rows_to_compute(assembly, selected)):
        tokens = [assembly.tokens[position] for position in rows.tolist()]
        begin = hidden.of(rows) if hidden is not None else None
        plan = ForwardPlan(rows, backend=backend, observe=observe, begin=begin)
        logits = adapter.forward(tokens, assembly.cache, plan=plan)
    if logits is None:
        raise AssertionError("nothing was computed, or the observer of the final pass stopped it")
    return logits
