"""Put stored KV together into a request's own cache, every key turned to its new position.

Knows stored chunks and positions. Does not know which tokens will be computed again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial

import torch

from ragboost.chunk_cache.kv.request_cache import RequestCache, RequestLayer
from ragboost.chunk_cache.kv.store import ChunkKV
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.hook import Hidden
from ragboost.chunk_cache.model.rope import Frequencies, Layout, angles, rotate


class TokenSource(IntEnum):
    """Where a token's KV comes from."""

    MISSING = 0
    """Nowhere: it must be computed."""
    APPROXIMATE = 1
    """A chunk that was computed without what now stands before it."""
    EXACT = 2
    """The KV that an ordinary forward of this very prompt gives."""


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """A part of the prompt: the system prompt, a chunk, or the question.

    Attributes:
        start, stop: positions.
        source: of its tokens.
        kv: stored KV; None where missing. Its first token is the span's first.
    """

    start: int
    stop: int
    source: TokenSource
    kv: ChunkKV | None = None


@dataclass(slots=True)
class Assembly:
    """A prompt with the KV that is known of it.

    Attributes:
        tokens: ids of the whole prompt.
        cache: the request's own; missing tokens have zeros.
        source: of each token, (tokens,) int8.
        chunks: positions (start, stop) of each chunk.
        question: position of the question's first token.
        sensitivity: offline scores, (tokens,); 0 where not measured.
        stored: the KV of each chunk as it was stored, whether all of it is used or not; None where
            it was not stored.
        hidden: what goes into a layer for all rows that may be computed, where choosing among them
            has found it out; later passes begin there.
    """

    tokens: list[int]
    cache: RequestCache
    source: torch.Tensor
    chunks: list[tuple[int, int]]
    question: int
    sensitivity: torch.Tensor
    stored: list[ChunkKV | None] = field(default_factory=list)
    hidden: Hidden | None = None

    @property
    def candidates(self) -> torch.Tensor:
        """Positions of the approximate tokens, ascending: those a policy chooses from."""
        return torch.nonzero(self.source == TokenSource.APPROXIMATE).flatten()

    @property
    def missing(self) -> torch.Tensor:
        """Positions without KV outside the question, ascending."""
        before = self.source[: self.question]
        return torch.nonzero(before == TokenSource.MISSING).flatten()


@torch.no_grad()  # type: ignore[untyped-decorator]
def assemble(
    adapter: ModelAdapter,
    spans: Sequence[ChunkSpan],
    *,
    length: int,
    into: RequestCache | None = None,
    num_held: int = 0,
) -> RequestCache:
    """Return a cache of `length` slots with the KV of the spans.

    Stored KV is read, never written. The keys of each layer are turned in one go. Where stored KV
    is still loading, a new cache's layers are filled one by one as they are looked at.

    Args:
        adapter: the model.
        spans: what goes where.
        length: tokens of the prompt.
        into: the cache to fill, which has this length; None: a new one.
        num_held: leading slots of `into` that are left as they are.
    """
    cache = adapter.empty_cache(length) if into is None else into
    if into is not None:
        for empty in into.layers:  # masked values take part in sums, so they must be numbers
            empty.keys[:, :, num_held:] = 0
            empty.values[:, :, num_held:] = 0
    known = [(span, span.kv) for span in spans if span.kv is not None]
    if not known:
        return cache
    device = adapter.device
    stored = torch.cat(
        [torch.arange(kv.base, kv.base + s.stop - s.start, device=device) for s, kv in known]
    )
    wanted = torch.cat([torch.arange(s.start, s.stop, device=device) for s, _ in known])
    old = {kv.length: adapter.frequencies(kv.length) for _, kv in known}
    turns = _Turns(
        stored=stored,
        wanted=wanted,
        old=[(old[kv.length], s.stop - s.start) for s, kv in known],
        new=adapter.frequencies(length),
    )
    is_loading = into is None and any(not isinstance(kv.layers, tuple) for _, kv in known)
    for layer, target in enumerate(cache.layers):
        fill = partial(_fill, target, known, layer, turns=turns, layout=adapter.layouts[layer])
        if is_loading:
            target.fill_later(fill)
        else:
            fill()
    return cache


@torch.no_grad()  # type: ignore[untyped-decorator]
def _fill(
    target: RequestLayer,
    known: Sequence[tuple[ChunkSpan, ChunkKV]],
    layer: int,
    *,
    turns: "_Turns",
    layout: Layout,
) -> None:
    keys = torch.cat([kv.layers[layer][0][:, :, : s.stop - s.start] for s, kv in known], 2)
    cos, sin = turns.of(layer)
    moved = rotate(keys, cos, sin, layout=layout)
    offset = 0
    for span, kv in known:
        count = span.stop - span.start
        target.keys[:, :, span.start : span.stop] = moved[:, :, offset : offset + count]
        target.values[:, :, span.start : span.stop] = kv.layers[layer][1][:, :, :count]
        offset += count


class _Turns:
    """Cosine and sine by which each stored key turns; layers with equal speeds share them."""

    def __init__(
        self,
        *,
        stored: torch.Tensor,
        wanted: torch.Tensor,
        old: Sequence[tuple[tuple[Frequencies, ...], int]],
        new: tuple[Frequencies, ...],
    ) -> None:
        self._stored, self._wanted, self._old, self._new = stored, wanted, old, new
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def of(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        new = self._new[layer]
        if id(new) not in self._known:
            parts, offset = [], 0
            for old, count in self._old:
                part = slice(offset, offset + count)
                parts.append(
                    angles(old[layer], new, stored=self._stored[part], wanted=self._wanted[part])
                )
                offset += count
            turn = torch.cat(parts)
            self._known[id(new)] = (turn.cos().float(), turn.sin().float())
        return self._known[id(new)]
