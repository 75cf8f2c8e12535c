"""Measure how a stored chunk depends on other chunks: what Cache-Craft and `hybrid-offline` need.

The chunk is computed behind its neighbours, as in `chunk_cache.precompute.prime`. Knows models and
assembled prompts. Does not know stores.
"""

from dataclasses import dataclass, replace

import torch

from ragboost.chunk_cache.model.assemble import Assembly
from ragboost.chunk_cache.model.attention.backend import AttentionBackend
from ragboost.chunk_cache.model.change import relative_change
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.model.reusable_model import ReusableModel
from ragboost.chunk_cache.selection.influence_observer import InfluenceObserver
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.influence import Influence


@dataclass(frozen=True, slots=True)
class ChunkMeasure:
    """Measurements of one chunk, see `ChunkKV`.

    Attributes:
        sensitivity: dependence of each token's keys on the neighbours, (tokens,).
        influence: attention of its tokens to them; names no context, as the stored KV has none.
    """

    sensitivity: torch.Tensor
    influence: Influence

    def added_to(self, kv: ChunkKV) -> ChunkKV:
        """Return stored KV of the chunk with these measurements."""
        return replace(kv, sensitivity=self.sensitivity, influence=self.influence)


def measure_last_chunk(
    model: ReusableModel, assembly: Assembly, *, backend: AttentionBackend | None
) -> ChunkMeasure:
    """Compute the last chunk over the KV of the chunks before it, and compare (Cache-Craft eq. 9,
    10; FusionRAG eq. 10). Its KV in the assembly is replaced.

    Args:
        model: the model.
        assembly: the prompt, with the stored KV of that chunk, and KV for every token before it.
        backend: attention backend.
    """
    number = len(assembly.chunks) - 1
    start, stop = assembly.chunks[number]
    layers = assembly.cache.layers
    old = [layer.keys[:, :, start:stop].clone() for layer in layers]
    observer = InfluenceObserver(assembly.tokens, assembly.chunks, watched=[number])
    rows = torch.arange(start, stop, device=model.device)
    model.forward(
        assembly.tokens[start:stop],
        assembly.cache,
        plan=ForwardPlan(rows, backend=backend, observe=observer),
    )
    change = relative_change(old, [layer.keys[:, :, start:stop] for layer in layers])
    influence = observer.influences()[number]
    return ChunkMeasure(change.cpu(), replace(influence, context=(), inter=()))
