"""Evict document KV that the question pays little attention to, once after prefill (SnapKV, an
extension in A3). Keys keep their rotation, so positions continue from the full prompt."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from transformers.cache_utils import DynamicCache, DynamicLayer

from ragboost.chunk_cache.core.reuse import ChunkReuse, Prefill
from ragboost.chunk_cache.model.attention.backend import AttentionInputs, exact_mask
from ragboost.chunk_cache.model.attention.dense import attention_weights
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.errors import ChunkCacheError

WINDOW = 32
"""Number of last question tokens whose attention is measured."""
KERNEL = 7
"""Width of the max pooling of scores, which keeps runs of tokens together."""


class EvictedLayer(DynamicLayer):  # type: ignore[misc]  # transformers is untyped
    """A layer that holds fewer tokens than its length, all of them before all new ones."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, *, num_evicted: int) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True
        self.num_evicted = num_evicted

    def get_seq_length(self) -> int:
        return int(self.keys.shape[-2]) + self.num_evicted

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return int(self.keys.shape[-2]) + query_length, self.num_evicted


class QuestionWindow:
    """An observer of the last question tokens' attention to each key, per layer and KV head."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = min(num_rows, WINDOW)
        self.scores: dict[int, torch.Tensor] = {}  # layer -> (kv heads, keys)
        self.windows: dict[int, int | None] = {}

    def __call__(self, layer: int, inputs: AttentionInputs) -> None:
        rows = slice(inputs.query.shape[2] - self.num_rows, None)
        mask = exact_mask(inputs.positions[rows], inputs.num_keys, window=inputs.window)
        weights = attention_weights(inputs, inputs.query[:, :, rows], inputs.key, mask)[0]
        by_head = weights.sum(1)
        self.scores[layer] = by_head.view(inputs.key.shape[1], -1, inputs.num_keys).sum(1)
        self.windows[layer] = inputs.window


def shortened_prefill(
    reuse: ChunkReuse,
    system: Sequence[int],
    chunks: Sequence[Sequence[int]],
    question: Sequence[int],
    *,
    keep_tokens: int | None,
    **options: Any,
) -> Prefill:
    """Fill a prompt, and keep at most so many tokens of it for decoding (None: all)."""
    if keep_tokens is None:
        return reuse.prefill(system, chunks, question, **options)
    window = QuestionWindow(len(question))
    filled = reuse.prefill(system, chunks, question, observe=window, **options)
    documents = (len(system), filled.num_tokens - len(question))
    cache = evict(filled.cache, window, documents=documents, capacity=keep_tokens)
    return replace(filled, cache=cache)


def evict(
    cache: RequestCache, window: QuestionWindow, *, documents: tuple[int, int], capacity: int
) -> DynamicCache:
    """Return a new cache with at most `capacity` tokens per layer and head: system prompt,
    question, and of the documents at (start, stop) the tokens with the highest pooled attention.
    Layers with a sliding window are not shortened."""
    start, stop = documents
    length = int(cache.layers[0].keys.shape[2])
    num_kept = capacity - (length - (stop - start))
    if num_kept < 0:
        raise ChunkCacheError(
            f"capacity must be at least {capacity - num_kept}, the tokens of system prompt and "
            f"question, got {capacity}"
        )
    short = DynamicCache()
    short.layers = []
    for index, layer in enumerate(cache.layers):
        if window.windows[index] is not None or num_kept >= stop - start:
            kept = EvictedLayer(layer.keys, layer.values, num_evicted=0)
        else:
            slots = _slots(window.scores[index], start, stop, num_kept)[None, :, :, None]
            kept = EvictedLayer(
                layer.keys.gather(2, slots.expand(-1, -1, -1, layer.keys.shape[3])),
                layer.values.gather(2, slots.expand(-1, -1, -1, layer.values.shape[3])),
                num_evicted=length - slots.shape[2],
            )
        short.layers.append(kept)
    return short


def _slots(scores: torch.Tensor, start: int, stop: int, num_kept: int) -> torch.Tensor:
    """Return the slots kept by each head, ascending, (kv heads, kept)."""
    heads, length = scores.shape
    pooled = F.max_pool1d(scores[:, None, start:stop], KERNEL, stride=1, padding=KERNEL // 2)[:, 0]
    best = pooled.topk(num_kept, dim=-1).indices.sort(-1).values + start
    before = torch.arange(start, device=scores.device).expand(heads, -1)
    after = torch.arange(stop, length, device=scores.device).expand(heads, -1)
    return torch.cat((before, best, after), -1)
