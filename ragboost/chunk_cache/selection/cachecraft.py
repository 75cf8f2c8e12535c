"""Cache-Craft: the tokens that looked most at other chunks when their KV was computed, more of them
where a chunk's context is gone (Cache-Craft eq. 12-14).

Nothing is looked at now: everything was gathered when the chunk was stored.
"""

import torch

from ragboost.chunk_cache.assemble import Assembly
from ragboost.chunk_cache.craft.influence import chunk_name
from ragboost.chunk_cache.selection.base import Policy
from ragboost.chunk_cache.selection.view import SelectionView


class CacheCraft(Policy):
    """The k-th token of a chunk's order list is computed again once alpha x CCI x (1 - beta') x
    length exceeds k, counted from 0.

    A chunk without an influence counts as one that was changed throughout, from its start.

    Args:
        alpha: scale of CFO (eq. 12), whatever ratio is asked for; None: the alpha that gives the
            asked ratio, found for each prompt.
        literal: see `context_impact`.
    """

    def __init__(self, *, alpha: float | None = None, literal: bool = False) -> None:
        self.alpha, self.literal = alpha, literal

    def num_tokens(self, assembly: Assembly, asked: float) -> int:
        if self.alpha is None:
            return super().num_tokens(assembly, asked)
        return int((self._needed_alpha(assembly) < self.alpha - 1e-9).sum())

    def score(self, view: SelectionView) -> torch.Tensor:
        return -self._needed_alpha(view.assembly)

    def _needed_alpha(self, assembly: Assembly) -> torch.Tensor:
        """Return for each candidate the alpha above which it is chosen, (candidates,)."""
        needed = torch.zeros(len(assembly.tokens), dtype=torch.float64)
        names = [chunk_name(assembly.tokens[start:stop]) for start, stop in assembly.chunks]
        for number, (start, stop) in enumerate(assembly.chunks):
            kv, length = assembly.stored[number], stop - start
            influence = None if kv is None else kv.influence
            order, weight = torch.arange(length), 1.0
            if influence is not None:
                prefix = [
                    n for n, (s, e) in zip(names[:number], assembly.chunks, strict=False) if e > s
                ]
                overlap = influence.overlap(prefix)
                weight = influence.impact(literal=self.literal) * (1.0 - overlap)
                order = torch.tensor(influence.order)
            place = torch.empty(length, dtype=torch.float64)
            place[order] = torch.arange(length, dtype=torch.float64)
            # A chunk without weight comes after all others, its own order kept.
            cost = place / (weight * length) if weight > 0.0 else 1e12 + place
            needed[start:stop] = cost
        return needed.to(assembly.source.device)[assembly.candidates]
