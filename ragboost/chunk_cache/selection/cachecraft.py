"""Cache-Craft: the tokens that paid most attention to other chunks when their KV was computed, more
of them the less of a chunk's context is present (eq. 12-14). Alpha follows from the ratio."""

import torch

from ragboost.chunk_cache.model.assemble import Assembly, TokenSource
from ragboost.chunk_cache.model.pace import Steps
from ragboost.chunk_cache.selection.policy import SelectionPolicy
from ragboost.chunk_cache.selection.view import SelectionView
from ragboost.chunk_cache.store.influence import chunk_name
from ragboost.errors import ChunkCacheError


class CacheCraft(SelectionPolicy):
    """Selection of the k-th token of a chunk's order once alpha x CCI x (1 - beta') x length
    exceeds k, from 0."""

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        yield from ()
        _check_measured(view.assembly)
        return -self._needed_alpha(view.assembly)[view.candidates]

    def _needed_alpha(self, assembly: Assembly) -> torch.Tensor:
        needed = torch.zeros(len(assembly.tokens), dtype=torch.float64)
        prefix: list[str] = []
        for (start, stop), kv in zip(assembly.chunks, assembly.stored, strict=True):
            length = stop - start
            influence = None if kv is None else kv.influence
            order, weight = torch.arange(length), 0.0
            if influence is not None:  # else it has no candidates
                overlap = influence.overlap(prefix)
                weight = influence.impact() * (1.0 - overlap)
                order = torch.tensor(influence.order, dtype=torch.long)
            place = torch.empty(length, dtype=torch.float64)
            place[order] = torch.arange(length, dtype=torch.float64)
            # A chunk without weight comes after all others, in its own order.
            needed[start:stop] = place / (weight * length) if weight > 0.0 else 1e12 + place
            if length:
                prefix.append(chunk_name(assembly.tokens[start:stop]))
        return needed.to(assembly.source.device)


def _check_measured(assembly: Assembly) -> None:
    is_candidate = assembly.source == TokenSource.APPROXIMATE
    for number, ((start, stop), kv) in enumerate(
        zip(assembly.chunks, assembly.stored, strict=True)
    ):
        if bool(is_candidate[start:stop].any()) and (kv is None or kv.influence is None):
            raise ChunkCacheError(
                "the policy cachecraft needs the influence of every reused chunk, and chunk "
                f"{number} was stored without it; prepare the chunks with `ragboost precompute`, "
                "or use a policy that needs no measurements, such as anchored"
            )
