"""Read the `ragboost` object of a request: reuse and chunks (`chunk_cache.core.options`), and
graphs (`graph.request`). An invalid or unknown field raises `RequestError`, which names it."""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from ragboost.chunk_cache.core.options import (
    FIELD,
    MAX_CHUNKS,
    ChunkPosition,
    ReuseDefaults,
    ReuseOptions,
    read_options,
    read_positions,
)
from ragboost.chunk_cache.http.fields import Fields, read_fields
from ragboost.errors import RequestError
from ragboost.graph.request import GraphFields, GraphRequest


class RagboostFields(Fields):
    """Fields of the engine beyond OpenAI's."""

    reuse: Any = Field(
        None,
        description='Chunk reuse: "exact", "approx", or an object with `policy` and `ratio`.',
    )
    chunks: list[list[Annotated[int, Field(ge=0)]]] = Field(
        [],
        max_length=MAX_CHUNKS,
        description="Positions of documents: [message, start, stop], or [start, stop] in a prompt.",
    )
    exact_chunks: int = Field(
        0,
        ge=0,
        le=MAX_CHUNKS,
        description="Leading chunks that are computed exactly, so that the prefix cache holds "
        "them, instead of being reused.",
    )
    measure: bool = Field(
        False, description="Measure the last chunk behind the others, and store that."
    )
    tenant: str | None = Field(
        None, max_length=256, description="Stored chunks are shared with requests of the same one."
    )
    graph: GraphFields | None = None


class Extension(NamedTuple):
    reuse: ReuseOptions | None  # None: the request is computed exactly
    stores: bool = False  # its chunks are stored, though it is computed exactly
    tenant: str = ""
    positions: Sequence[ChunkPosition] = ()  # of its chunks
    graph: GraphRequest | None = None
    exact_chunks: int = 0  # leading ones that are not reused
    measure: bool = False


def parse_extension(value: Any, defaults: ReuseDefaults, *, is_chat: bool) -> Extension:
    fields = read_fields(RagboostFields, {} if value is None else value, name=FIELD)
    if fields.graph is not None:
        if not is_chat:
            raise RequestError(f"{FIELD}.graph needs messages", param=f"{FIELD}.graph")
        if fields.chunks:
            raise RequestError(
                f"{FIELD}.graph and {FIELD}.chunks exclude each other", param=f"{FIELD}.chunks"
            )
        return Extension(None, graph=fields.graph.request())
    asked = {"reuse": fields.reuse, "chunks": fields.chunks, "tenant": fields.tenant}
    positions = read_positions(asked, is_chat=is_chat)
    return Extension(
        read_options(asked, defaults),
        stores=bool(positions) and fields.reuse == "exact" and defaults.refusal is None,
        tenant=fields.tenant or "",
        positions=positions,
        exact_chunks=fields.exact_chunks,
        measure=fields.measure,
    )


def check_inside(stop: int, length: int) -> None:
    if stop > length:
        raise RequestError(
            f"{FIELD}.chunks ends at {stop}, after the end of its text at {length}",
            param=f"{FIELD}.chunks",
        )
