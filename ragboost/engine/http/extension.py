"""Read the `ragboost` object of a request: reuse and chunks (`chunk_cache.core.options`), and
graphs (`graph.request`). An invalid or unknown field raises `RequestError`, which names it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import ConfigDict

from ragboost.chunk_cache.core.options import (
    FIELD,
    ChunkPosition,
    ReuseDefaults,
    ReuseFields,
    ReuseOptions,
)
from ragboost.chunk_cache.core.request import EngineChunkRequest
from ragboost.chunk_cache.fields import read_fields
from ragboost.errors import RequestError
from ragboost.graph.request import GraphFields


class RagboostFields(ReuseFields):
    """Fields of the engine beyond OpenAI's."""

    model_config = ConfigDict(extra="forbid")

    graph: GraphFields | None = None


class Extension(NamedTuple):
    positions: Sequence[ChunkPosition] = ()  # of its chunks
    # What becomes of them, whose places are still to be found; None: nothing.
    chunks: EngineChunkRequest | None = None
    graph: GraphFields | None = None


def parse_extension(value: Any, defaults: ReuseDefaults, *, is_chat: bool) -> Extension:
    fields = read_fields(RagboostFields, {} if value is None else value, name=FIELD)
    if fields.graph is not None:
        if not is_chat:
            raise RequestError(f"{FIELD}.graph needs messages", param=f"{FIELD}.graph")
        if fields.chunks:
            raise RequestError(
                f"{FIELD}.graph and {FIELD}.chunks exclude each other", param=f"{FIELD}.chunks"
            )
        return Extension(graph=fields.graph)
    positions = fields.positions(is_chat=is_chat)
    options = fields.options(defaults)
    is_stored = bool(positions) and fields.is_exact and defaults.refusal is None
    if options is None and not is_stored:
        return Extension(positions)
    policy, ratio = options or ReuseOptions()
    chunks = EngineChunkRequest(
        policy=policy,
        ratio=ratio,
        tenant=fields.tenant,
        reason=None if options else "reuse_off",
        measure=fields.measure,
        exact_chunks=fields.exact_chunks,
    )
    return Extension(positions, chunks)


def check_inside(stop: int, length: int) -> None:
    if stop > length:
        raise RequestError(
            f"{FIELD}.chunks ends at {stop}, after the end of its text at {length}",
            param=f"{FIELD}.chunks",
        )
