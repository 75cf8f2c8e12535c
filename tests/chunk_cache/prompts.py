"""A library of chunks of a tiny model, and requests for them."""

import torch

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.request import EngineChunkRequest
from ragboost.chunk_cache.core.reuse import ChunkReuse, Prefill
from ragboost.chunk_cache.core.reusing_request import ReusingRequest
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.keys import Identity
from ragboost.chunk_cache.store.tiered import TieredStore

IDENTITY = Identity(model="tiny")


def make_library(adapter: ModelAdapter) -> ChunkLibrary:
    return ChunkLibrary.of(adapter, TieredStore(), identity=IDENTITY)


def learn(
    library: ChunkLibrary, adapter: ModelAdapter, system: list[int], chunks: list[list[int]]
) -> None:
    """Store each chunk as computed directly after the system prompt."""
    own = ChunkReuse(adapter, TieredStore(), identity=IDENTITY, backend=None)
    for tokens in chunks:
        library.add(library.key(tokens), own.plain(system, tokens), is_first=True)


def stored_kv(reuse: ChunkReuse, tokens: list[int]) -> ChunkKV | None:
    """Return the stored KV of a chunk."""
    return reuse.library.find(reuse.library.key(tokens), tokens)


def num_stored(reuse: ChunkReuse) -> int:
    """Return the number of chunks in memory."""
    assert isinstance(reuse.store, TieredStore)
    return len(reuse.store.memory)


def make_request(
    system: list[int], chunks: list[list[int]], question: list[int], **options: object
) -> tuple[EngineChunkRequest, list[int]]:
    """Return the request for a prompt, and its tokens."""
    tokens, positions = list(system), []
    for chunk in chunks:
        positions.append((len(tokens), len(tokens) + len(chunk)))
        tokens += chunk
    return EngineChunkRequest(tuple(positions), **options), tokens + question  # type: ignore[arg-type]


def exact_prefix(adapter: ModelAdapter, tokens: list[int]) -> ChunkKV:
    """KV as an engine's prefix cache holds it."""
    cache = adapter.empty_cache(len(tokens))
    adapter.forward(tokens, cache, plan=ForwardPlan(torch.arange(len(tokens))))
    layers = tuple((layer.keys, layer.values) for layer in cache.layers)
    return ChunkKV(tuple(tokens), 0, layers, adapter.regime(1), len(tokens))


def take(
    reuse: ChunkReuse,
    prefill: Prefill,
    system: list[int],
    chunks: list[list[int]],
    question: list[int],
) -> None:
    """Store the system prompt, and the chunks of a computed prompt as engines do."""
    library = reuse.library
    request, tokens = make_request(system, chunks, question)
    asked = ReusingRequest.begin("", request, tokens, namespace=(), library=library)
    captured = asked.take_captures(
        library,
        pass_start=0,
        num_computed=len(tokens),
        exact_stop=prefill.num_publishable if prefill.counts.reused else None,
    )
    reuse.take(prefill.cache, tokens, captured)
    reuse.precompute(system, [])
