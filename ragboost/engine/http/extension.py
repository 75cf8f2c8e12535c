"""Read the `ragboost` object of a request: whether stored chunks are reused, and where they stand.

    {"reuse": "exact" | "approx" | {"policy": "gradual", "ratio": 0.15},
     "chunks": [[start, stop], ...],              in a prompt: characters, or tokens where it is ids
               [[message, start, stop], ...],     in messages: characters of a message's text
     "graph": {...}}                              relation paths in messages, see `graph`

Knows JSON shapes. Does not know the engine. The object is ours: what is wrong in it is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ragboost.chunk_cache.selection import POLICIES
from ragboost.engine.http.graph_request import GraphRequest, parse_graph
from ragboost.engine.parts import TextSpan
from ragboost.errors import RequestError

FIELD = "ragboost"
_KNOWN = ("reuse", "chunks", "graph")
_MAX_CHUNKS = 4096


@dataclass(frozen=True, slots=True)
class Approx:
    """Stored chunks are reused wherever they stand.

    Attributes:
        policy: which of their tokens to compute again, one of `POLICIES`.
        ratio: their share.
    """

    policy: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Extension:
    """What a request asks of us beyond OpenAI's fields.

    Attributes:
        reuse: None: everything is exact.
        spans: of chunks in the prompt, or by message; empty where none are given.
        by_message: of chunks, by number of the message.
        graph: None: there is none.
    """

    reuse: Approx | None
    spans: tuple[TextSpan, ...] = ()
    by_message: Mapping[int, tuple[TextSpan, ...]] = field(default_factory=dict)
    graph: GraphRequest | None = None


@dataclass(frozen=True, slots=True)
class ReuseDefaults:
    """What a request gets that does not say.

    Attributes:
        is_approx: whether it reuses chunks.
        approx: policy and ratio of those that do.
        refusal: why this engine cannot reuse chunks; None: it can.
    """

    is_approx: bool
    approx: Approx
    refusal: str | None = None


def parse_extension(body: Mapping[str, Any], defaults: ReuseDefaults) -> Extension:
    """Read the object of a chat or text completion.

    Raises:
        RequestError: naming the field that is wrong, or why chunks cannot be reused.
    """
    given = body.get(FIELD)
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise RequestError(f"{FIELD} must be an object, got {type(given).__name__}", param=FIELD)
    for name in given:
        if name not in _KNOWN:
            raise RequestError(
                f"{FIELD}.{name} is unknown here; the engine knows {', '.join(_KNOWN)}, the "
                "proxy in front of it the others",
                param=f"{FIELD}.{name}",
            )
    if given.get("graph") is not None:
        return _with_graph(given, is_chat="messages" in body)
    reuse = _reuse(given.get("reuse"), defaults)
    chunks = given.get("chunks") or []
    width = 3 if "messages" in body else 2
    rows = _rows(chunks, width)
    if width == 2:
        spans = tuple(TextSpan(start, stop) for start, stop in rows)
        _check_order(spans)
        return Extension(reuse, spans)
    by_message: dict[int, tuple[TextSpan, ...]] = {}
    for message, start, stop in rows:
        by_message[message] = (*by_message.get(message, ()), TextSpan(start, stop))
    for spans in by_message.values():
        _check_order(spans)
    return Extension(reuse, by_message=by_message)


def _with_graph(given: Mapping[str, Any], *, is_chat: bool) -> Extension:
    if not is_chat:
        raise RequestError(f"{FIELD}.graph needs messages", param=f"{FIELD}.graph")
    if given.get("chunks"):
        raise RequestError(
            f"{FIELD}.graph and {FIELD}.chunks exclude each other", param=f"{FIELD}.chunks"
        )
    return Extension(None, graph=parse_graph(given["graph"]))


def check_inside(spans: Sequence[TextSpan], length: int) -> None:
    """See that spans end inside what they cut.

    Raises:
        RequestError: one ends behind it.
    """
    if spans and spans[-1].stop > length:
        raise RequestError(
            f"{FIELD}.chunks ends at {spans[-1].stop}, behind the end of its text at {length}",
            param=f"{FIELD}.chunks",
        )


def _reuse(given: Any, defaults: ReuseDefaults) -> Approx | None:
    where = f"{FIELD}.reuse"
    if given is None:
        return defaults.approx if defaults.is_approx and defaults.refusal is None else None
    if given == "exact":
        return None
    if given == "approx":
        given = {}
    if not isinstance(given, dict):
        raise RequestError(
            f'{where} must be "exact", "approx" or an object with policy and ratio', param=where
        )
    if defaults.refusal is not None:
        raise RequestError(
            f"{where}: chunks cannot be reused here: {defaults.refusal}", param=where
        )
    if unknown := sorted(set(given) - {"policy", "ratio"}):
        raise RequestError(
            f"{where}.{unknown[0]} is unknown; known are policy and ratio",
            param=f"{where}.{unknown[0]}",
        )
    policy, ratio = given.get("policy"), given.get("ratio")
    if policy is None:
        policy = defaults.approx.policy
    if not isinstance(policy, str) or policy not in POLICIES:
        raise RequestError(
            f"{where}.policy must be one of {', '.join(POLICIES)}, got {policy!r}",
            param=f"{where}.policy",
        )
    if ratio is None:
        ratio = defaults.approx.ratio
    is_number = isinstance(ratio, int | float) and not isinstance(ratio, bool)
    if not is_number or not 0 <= ratio <= 1:
        raise RequestError(
            f"{where}.ratio must be a number from 0 to 1, got {ratio!r}", param=f"{where}.ratio"
        )
    return Approx(policy, float(ratio))


def _rows(chunks: Any, width: int) -> list[list[int]]:
    shape = "[message, start, stop]" if width == 3 else "[start, stop]"
    where = f"{FIELD}.chunks"
    if not isinstance(chunks, list) or len(chunks) > _MAX_CHUNKS:
        raise RequestError(f"{where} must be a list of at most {_MAX_CHUNKS} {shape}", param=where)
    for number, row in enumerate(chunks):
        if (
            not isinstance(row, list)
            or len(row) != width
            or not all(type(value) is int and value >= 0 for value in row)
        ):
            raise RequestError(
                f"{where}[{number}] must be {shape} in whole numbers, got {row!r}",
                param=f"{where}[{number}]",
            )
    return chunks


def _check_order(spans: Sequence[TextSpan]) -> None:
    end = 0
    for start, stop in spans:
        if not end <= start < stop:
            raise RequestError(
                f"{FIELD}.chunks must ascend without overlaps: [{start}, {stop}] follows {end}",
                param=f"{FIELD}.chunks",
            )
        end = stop
