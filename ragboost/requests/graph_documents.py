"""Write the graph of a request as documents, for backends that read no `ragboost.graph`.

    {"graph": {"paths": [["Elon Musk", "founded", "SpaceX", "located in", "Texas"], ...]}}

The paths of each first entity, written out one per line, are one document. Knows bodies. Does not
know graphs.
"""

from collections.abc import Mapping
from itertools import count
from typing import Any

from ragboost.errors import RequestError, json_type
from ragboost.requests.formats.ragboost_object import FIELD, GRAPH
from ragboost.requests.json_body import JsonBody

_WHERE = f"{FIELD}.{GRAPH}"
_MAX_PATHS = 20_000
_FIELDS = ("paths", "attention", "recompute_ratio")
_ATTENTION = ("auto", "self", "subgraphs", "dependency")


def graph_as_documents(raw: bytes, *, can_reuse: bool) -> bytes:
    """Return a body with documents in place of its graph; the body itself if it has none.

    Args:
        can_reuse: the backend reuses the KV of documents, as `attention` = `subgraphs` needs it.

    Raises:
        RequestError: the graph is malformed, or the backend cannot compute what it asks for.
    """
    body = JsonBody(raw)
    ours = body.fields.get(FIELD)
    if not isinstance(ours, dict) or ours.get(GRAPH) is None:
        return raw
    graph, given = ours[GRAPH], ours.get("documents", [])
    documents = _documents(graph)
    if not isinstance(given, list):
        return raw  # said where documents are read
    written = {name: value for name, value in ours.items() if name != GRAPH}
    written["documents"] = [*given, *documents]
    if (reuse := _reuse(graph, can_reuse=can_reuse)) is not None:
        written.setdefault("reuse", reuse)
    return body.encode({**body.fields, FIELD: written})


def _documents(graph: Any) -> list[dict[str, str]]:
    if not isinstance(graph, dict):
        raise _invalid("", f"must be an object, got {json_type(graph)}")
    if unknown := [name for name in graph if name not in _FIELDS]:
        raise _invalid(f".{unknown[0]}", f"is unknown; known are {', '.join(_FIELDS)}")
    by_root: dict[str, dict[str, None]] = {}  # the lines of each first entity, each once
    if not isinstance(paths := graph.get("paths") or [], list):
        raise _invalid(".paths", f"must be a list, got {json_type(paths)}")
    if not 0 < len(paths) <= _MAX_PATHS:
        raise _invalid("", f"must give from 1 to {_MAX_PATHS} paths, got {len(paths)}")
    for root, line in map(_line, paths, count()):
        by_root.setdefault(root, {})[line] = None
    return [{"id": root, "text": "\n".join(lines)} for root, lines in by_root.items()]


def _line(value: Any, at: int) -> tuple[str, str]:
    """Return a path's first entity, and its text."""
    is_list = isinstance(value, list) and len(value) % 2 == 1
    if not is_list or not all(isinstance(part, str) and part.strip() for part in value):
        shape = "[entity, relation, entity, ...], texts that are not empty"
        raise _invalid(f".paths[{at}]", f"must be {shape}")
    root, *others = [part.strip() for part in value]
    pairs = zip(others[::2], others[1::2], strict=True)
    return root, root + "".join([f" -{relation}-> {entity}" for relation, entity in pairs])


def _reuse(graph: Mapping[str, Any], *, can_reuse: bool) -> Any:
    """Return the `ragboost.reuse` of an attention mode; None: the backend's default."""
    attention = graph.get("attention", "auto")
    if attention not in _ATTENTION:
        raise _invalid(".attention", f"must be one of {', '.join(_ATTENTION)}")
    if attention == "dependency":
        raise _invalid(
            ".attention",
            "dependency needs a backend that reads graphs, the embedded engine: use auto, or "
            "subgraphs with a backend that reuses chunks",
        )
    if attention != "subgraphs":
        return None
    if not can_reuse:
        raise _invalid(
            ".attention",
            "subgraphs needs a backend that reuses chunks, and this one says it does not: use auto",
        )
    ratio = graph.get("recompute_ratio")
    return {"ratio": 0 if ratio is None else ratio}  # the engine checks it


def _invalid(where: str, problem: str) -> RequestError:
    return RequestError(f"{_WHERE}{where} {problem}", param=f"{_WHERE}{where}")
