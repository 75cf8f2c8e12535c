"""Read the `ragboost` object of a request: chunk reuse, chunk positions and graphs.

    {"reuse": ..., "chunks": ...,    see `ragboost.chunk_cache.core.options`
     "graph": {"paths": [["Elon Musk", "founded", "SpaceX", "located in", "Texas"], ...]}
            | {"triplets": [["Elon Musk", "founded", "SpaceX"], ...], "entities": ["Elon Musk"]}}

Knows JSON shapes. Does not know the engine. Any invalid or unknown field raises `RequestError`,
which names it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field

from ragboost.chunk_cache.core.options import (
    ReuseDefaults,
    ReuseOptions,
    read_options,
    read_positions,
)
from ragboost.chunk_cache.core.request import MAX_CHUNKS
from ragboost.engine.http.protocol import Fields, Text, read_fields
from ragboost.engine.text.cutting import TextSpan
from ragboost.engine.text.graph_prompts import GraphRequest
from ragboost.errors import RequestError
from ragboost.graph.retrieve import paths_of
from ragboost.graph.triplets import RelationPath, as_triplet

FIELD = "ragboost"
KEEP = f"{FIELD}.reuse.keep_tokens"
MAX_PATHS = 20_000


def _check_path(path: list[str]) -> list[str]:
    if len(path) % 2 == 0 or not all(part.strip() for part in path):
        raise ValueError("must be [entity, relation, entity, ...], an odd number of texts")
    return [part.strip() for part in path]


class GraphFields(Fields):
    """Relation paths, or triplets that form them."""

    paths: list[Annotated[list[str], AfterValidator(_check_path)]] = Field(
        [], max_length=MAX_PATHS, description="Each [entity, relation, entity, ...]."
    )
    triplets: list[Any] = Field(
        [], max_length=MAX_PATHS, description="Each [head, relation, tail]; chained to paths."
    )
    entities: list[Text] = Field(
        [], max_length=MAX_PATHS, description="First entities of the paths that triplets form."
    )
    hops: int = Field(2, ge=1, le=8, description="Maximum relations of such a path.")
    attention: Literal["auto", "dependency", "subgraphs", "self"] = "auto"
    recompute_ratio: float | None = Field(
        None, ge=0, le=1, description="Share of the paths' tokens to recompute."
    )


class RagboostFields(Fields):
    """Fields of the engine beyond OpenAI's."""

    reuse: Any = Field(
        None,
        description='Chunk reuse: "exact", "approx", or an object with `policy`, `ratio` and '
        "`keep_tokens`, the prompt tokens per layer and head that remain for decoding.",
    )
    chunks: list[list[Annotated[int, Field(ge=0)]]] = Field(
        [],
        max_length=MAX_CHUNKS,
        description="Positions of documents: [message, start, stop], or [start, stop] in a prompt.",
    )
    tenant: str | None = Field(
        None, max_length=256, description="Stored chunks are shared with requests of the same one."
    )
    graph: GraphFields | None = None


class Extension(NamedTuple):
    """The parsed `ragboost` object.

    Attributes:
        reuse: None: the request is computed exactly.
        spans: of chunks by message number; those of a text completion have number 0.
        graph: None: there is none.
        keep_tokens: prompt tokens per layer and head that remain for decoding; None: not given.
    """

    reuse: ReuseOptions | None
    spans: Mapping[int, Sequence[TextSpan]] = MappingProxyType({})
    graph: GraphRequest | None = None
    keep_tokens: int | None = None


def parse_extension(given: Any, defaults: ReuseDefaults, *, is_chat: bool) -> Extension:
    """Read the `ragboost` object of a chat or text completion."""
    fields = read_fields(RagboostFields, {} if given is None else given, name=FIELD)
    if fields.graph is not None:
        if not is_chat:
            raise RequestError(f"{FIELD}.graph needs messages", param=f"{FIELD}.graph")
        if fields.chunks:
            raise RequestError(
                f"{FIELD}.graph and {FIELD}.chunks exclude each other", param=f"{FIELD}.chunks"
            )
        return Extension(None, graph=_graph_request(fields.graph))
    reuse, keep_tokens = _without_keep(fields.reuse)
    asked = {"reuse": reuse, "chunks": fields.chunks, "tenant": fields.tenant}
    spans: defaultdict[int, list[TextSpan]] = defaultdict(list)
    for number, start, stop in read_positions(asked, is_chat=is_chat):
        spans[number].append(TextSpan(start, stop))
    return Extension(read_options(asked, defaults), spans, keep_tokens=keep_tokens)


def parse_graph(given: Any) -> GraphRequest:
    """Read the `graph` object alone."""
    return _graph_request(read_fields(GraphFields, given, name=f"{FIELD}.graph"))


def check_inside(spans: Sequence[TextSpan], length: int) -> None:
    """Check that spans end inside the text they cut."""
    if spans and spans[-1].stop > length:
        raise RequestError(
            f"{FIELD}.chunks ends at {spans[-1].stop}, after the end of its text at {length}",
            param=f"{FIELD}.chunks",
        )


def _without_keep(reuse: Any) -> tuple[Any, int | None]:
    """Split off `keep_tokens`, which only this engine has."""
    if not isinstance(reuse, dict) or reuse.get("keep_tokens") is None:
        return reuse, None
    keep = reuse["keep_tokens"]
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise RequestError(
            f"{KEEP} must be a number of tokens, at least 1, got {keep!r}", param=KEEP
        )
    return {name: value for name, value in reuse.items() if name != "keep_tokens"}, keep


def _graph_request(fields: GraphFields) -> GraphRequest:
    name = f"{FIELD}.graph"
    paths = [RelationPath(tuple(path)) for path in fields.paths]
    triplets = [
        as_triplet(one, where=f"{name}.triplets[{i}]") for i, one in enumerate(fields.triplets)
    ]
    if triplets:
        paths += paths_of(triplets, entities=fields.entities, hops=fields.hops)
    if not 0 < len(paths) <= MAX_PATHS:
        raise RequestError(
            f"{name} must give from 1 to {MAX_PATHS} paths, or triplets that form them from its "
            f"entities, got {len(paths)}",
            param=name,
        )
    return GraphRequest(tuple(paths), fields.attention, fields.recompute_ratio)
