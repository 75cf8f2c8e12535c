"""Assemble stored chunk KV into the cache of a prompt, and extract chunk KV from such a cache. Does
not know which tokens will be recomputed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from transformers.cache_utils import DynamicCache

from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.model.reusable_model import ReusableModel
from ragboost.chunk_cache.model.rope import KeyRotation
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.keys import tokens_digest


class TokenSource(IntEnum):
    MISSING = 0
    """Not stored: the token must be computed."""
    APPROXIMATE = 1
    """From a chunk that was computed in another context."""
    EXACT = 2
    """Equal to the KV of an ordinary forward pass over this prompt."""


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    start: int
    source: TokenSource
    kv: ChunkKV  # of its tokens

    @property
    def stop(self) -> int:
        return self.start + len(self.kv.tokens)


@dataclass(slots=True)
class Assembly:
    tokens: list[int]  # of the whole prompt
    cache: RequestCache  # zeros for missing tokens
    source: torch.Tensor  # `TokenSource` of each token, (tokens,) int8
    chunks: list[tuple[int, int]]  # positions (start, stop)
    question: int  # position of its first token
    stored: list[ChunkKV | None] = field(default_factory=list)  # of each chunk, whole

    def rows_to_compute(self, selected: torch.Tensor) -> torch.Tensor:
        """Return the positions of missing and selected tokens, ascending, without exact ones."""
        chosen = self.source == TokenSource.MISSING
        chosen[selected] = True
        chosen &= self.source != TokenSource.EXACT
        return torch.nonzero(chosen).flatten()

    @property
    def candidates(self) -> torch.Tensor:
        return torch.nonzero(self.source == TokenSource.APPROXIMATE).flatten()


@torch.no_grad()  # type: ignore[untyped-decorator]
def assemble(
    model: ReusableModel,
    spans: Sequence[ChunkSpan],
    *,
    length: int,
    into: RequestCache | None = None,
    num_held: int = 0,
) -> RequestCache:
    """Return a cache of `length` slots with the KV of the spans, its keys rotated to their
    positions (FusionRAG eq. 6). `into`: filled from slot `num_held` on, instead of a new one."""
    cache = model.empty_cache(length) if into is None else into
    if into is not None:
        for empty in into.layers:  # masked values take part in sums, so they must be finite
            empty.keys[:, :, num_held:] = 0
            empty.values[:, :, num_held:] = 0
    if not spans:
        return cache
    device, lengths = model.device, [len(span.kv.tokens) for span in spans]
    frequencies = {span.kv.length: model.frequencies(span.kv.length) for span in spans}
    rotation = KeyRotation(
        stored=torch.cat(
            [
                torch.arange(n, device=device) + s.kv.base
                for n, s in zip(lengths, spans, strict=True)
            ]
        ),
        target=torch.cat([torch.arange(s.start, s.stop, device=device) for s in spans]),
        old=[(frequencies[s.kv.length], n) for n, s in zip(lengths, spans, strict=True)],
        new=model.frequencies(length),
        layouts=model.layouts,
    )
    for layer, target in enumerate(cache.layers):
        stored = [span.kv.layers[layer] for span in spans]
        moved = rotation.apply(torch.cat([keys for keys, _ in stored], 2), layer)
        for span, keys, (_, values) in zip(spans, moved.split(lengths, 2), stored, strict=True):
            target.keys[:, :, span.start : span.stop] = keys
            target.values[:, :, span.start : span.stop] = values
    return cache


def extract(
    model: ReusableModel,
    cache: DynamicCache,
    tokens: Sequence[int],
    *,
    start: int,
    stop: int,
    is_exact: bool,
) -> ChunkKV:
    """Return a copy of the KV of the tokens [start, stop) of a computed prompt."""
    return ChunkKV(
        tuple(tokens[start:stop]),
        base=start,
        layers=tuple(
            (layer.keys[:, :, start:stop].clone(), layer.values[:, :, start:stop].clone())
            for layer in cache.layers
        ),
        regime=model.regime(len(tokens)),
        length=len(tokens),
        exact_after=tokens_digest(tokens[:start]) if is_exact else None,
    )
