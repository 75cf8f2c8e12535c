"""Read the `ragboost` object of a request: chunk reuse, chunk positions and graphs.

    {"reuse": "exact" | "approx" | {"policy": "gradual", "ratio": 0.15},
     "chunks": [[start, stop], ...],             in a prompt: characters, or tokens if it is ids
               [[message, start, stop], ...],    in messages: characters of a message's text
     "graph": {"paths": [["Elon Musk", "founded", "SpaceX", "located in", "Texas"], ...]}
            | {"triplets": [["Elon Musk", "founded", "SpaceX"], ...], "entities": ["Elon Musk"]}}

Knows JSON shapes. Does not know the engine. Any invalid or unknown field raises `RequestError`,
which names it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ragboost.chunk_cache.selection import POLICIES
from ragboost.engine.http.protocol import Fields, Text, read_fields
from ragboost.engine.runtime.prompt import ReuseOptions
from ragboost.engine.text.cutting import TextSpan
from ragboost.engine.text.graph_prompts import GraphRequest
from ragboost.errors import RequestError
from ragboost.graph.retrieve import paths_of
from ragboost.graph.triplets import RelationPath, as_triplet

FIELD = "ragboost"
MAX_PATHS = 20_000
_MAX_CHUNKS = 4096


class ReuseFields(Fields):
    """Options of chunk reuse."""

    policy: str | None = Field(None, description="Selects the tokens to recompute.")
    ratio: float | None = Field(None, ge=0, le=1, description="Share of them.")


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
        None, description='Chunk reuse: "exact", "approx", or an object with `policy` and `ratio`.'
    )
    chunks: list[list[Annotated[int, Field(ge=0)]]] = Field(
        [],
        max_length=_MAX_CHUNKS,
        description="Positions of documents: [message, start, stop], or [start, stop] in a prompt.",
    )
    graph: GraphFields | None = None


@dataclass(frozen=True, slots=True)
class Extension:
    """The parsed `ragboost` object.

    Attributes:
        reuse: None: the request is computed exactly.
        spans: of chunks by message number; those of a text completion have number 0.
        graph: None: there is none.
    """

    reuse: ReuseOptions | None
    spans: Mapping[int, Sequence[TextSpan]] = field(default_factory=dict)
    graph: GraphRequest | None = None


@dataclass(frozen=True, slots=True)
class ReuseDefaults:
    """Chunk reuse of requests that do not specify it.

    Attributes:
        is_approx: whether they reuse chunks.
        options: policy and ratio, unless a request gives them.
        refusal: why this engine cannot reuse chunks; None: it can.
        policies: names that requests may give.
    """

    is_approx: bool
    options: ReuseOptions
    refusal: str | None = None
    policies: Sequence[str] = tuple(POLICIES)


def parse_extension(body: Mapping[str, Any], defaults: ReuseDefaults) -> Extension:
    """Read the `ragboost` object of a chat or text completion."""
    given = body.get(FIELD)
    fields = read_fields(RagboostFields, {} if given is None else given, name=FIELD)
    is_chat = "messages" in body
    if fields.graph is not None:
        if not is_chat:
            raise RequestError(f"{FIELD}.graph needs messages", param=f"{FIELD}.graph")
        if fields.chunks:
            raise RequestError(
                f"{FIELD}.graph and {FIELD}.chunks exclude each other", param=f"{FIELD}.chunks"
            )
        return Extension(None, graph=_graph_request(fields.graph))
    reuse = _reuse(fields.reuse, defaults)
    shape = "[message, start, stop]" if is_chat else "[start, stop]"
    spans: defaultdict[int, list[TextSpan]] = defaultdict(list)
    for number, row in enumerate(fields.chunks):
        if len(row) != (3 if is_chat else 2):
            where = f"{FIELD}.chunks[{number}]"
            raise RequestError(f"{where} must be {shape}, got {row!r}", param=where)
        spans[row[0] if is_chat else 0].append(TextSpan(*row[-2:]))
    for inner in spans.values():
        _check_order(inner)
    return Extension(reuse, spans)


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


def _reuse(given: Any, defaults: ReuseDefaults) -> ReuseOptions | None:
    where = f"{FIELD}.reuse"
    if given is None:
        return defaults.options if defaults.is_approx and defaults.refusal is None else None
    if given == "exact":
        return None
    if given != "approx" and not isinstance(given, dict):
        raise RequestError(
            f'{where} must be "exact", "approx" or an object with policy and ratio', param=where
        )
    if defaults.refusal is not None:
        raise RequestError(
            f"{where}: chunks cannot be reused here: {defaults.refusal}", param=where
        )
    fields = read_fields(ReuseFields, {} if given == "approx" else given, name=where)
    policy = defaults.options.policy if fields.policy is None else fields.policy
    if policy not in POLICIES:
        raise RequestError(
            f"{where}.policy must be one of {', '.join(POLICIES)}, got {policy!r}",
            param=f"{where}.policy",
        )
    if policy not in defaults.policies:
        raise RequestError(
            f"{where}.policy {policy!r} needs measurements that chunks have only if they were "
            "prepared: run `ragboost precompute` and set engine.reuse_directory, or use one of "
            f"{', '.join(defaults.policies)}",
            param=f"{where}.policy",
        )
    return ReuseOptions(policy, defaults.options.ratio if fields.ratio is None else fields.ratio)


def _check_order(spans: Sequence[TextSpan]) -> None:
    end = 0
    for start, stop in spans:
        if not end <= start < stop:
            raise RequestError(
                f"{FIELD}.chunks must ascend without overlaps: [{start}, {stop}] follows {end}",
                param=f"{FIELD}.chunks",
            )
        end = stop
