"""Read the `graph` of a body's `ragboost` object, and lay its conversation out in token ids.

    {"paths": [["Elon Musk", "founded", "SpaceX", "located in", "Texas"], ...]}
    {"triplets": [["Elon Musk", "founded", "SpaceX"], ...], "entities": ["Elon Musk"]}

Knows JSON shapes and the tokenizer. Does not know the model or how attention is done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ragboost.chunk_cache.dependency.prompt import DepPrompt, LinearNode
from ragboost.engine.tokenizer import ChatTokenizer
from ragboost.errors import RequestError
from ragboost.graph.render import path_segments, path_text
from ragboost.graph.retrieve import paths_of
from ragboost.graph.triplets import RelationPath, as_triplet

FIELD = "ragboost.graph"
INTRO = "Facts:\n"
MAX_PATHS = 20_000
_KNOWN = ("paths", "triplets", "entities", "hops", "attention", "recompute_ratio")
_ATTENTIONS = ("auto", "dependency", "subgraphs", "self")
_MAX_HOPS = 8
_CACHED_SEGMENTS = 65_536


@dataclass(frozen=True, slots=True)
class GraphRequest:
    """What a request gives.

    Attributes:
        paths: at least one.
        attention: as asked for: `auto`, `dependency`, `subgraphs` or `self`.
        recompute_ratio: share of the paths' tokens to compute again with everything in sight; None:
            the engine's.
    """

    paths: tuple[RelationPath, ...]
    attention: str = "auto"
    recompute_ratio: float | None = None


def parse_graph(given: Any) -> GraphRequest:
    """Read the object.

    Raises:
        RequestError: naming the field that is wrong.
    """
    if not isinstance(given, dict):
        raise RequestError(f"{FIELD} must be an object, got {type(given).__name__}", param=FIELD)
    for name in given:
        if name not in _KNOWN:
            raise refusal(name, f"is unknown; known are {', '.join(_KNOWN)}")
    paths = [_path(path, i) for i, path in enumerate(_list(given, "paths"))]
    triplets = [
        as_triplet(one, where=f"{FIELD}.triplets[{i}]")
        for i, one in enumerate(_list(given, "triplets"))
    ]
    entities = _list(given, "entities")
    if not all(isinstance(entity, str) and entity for entity in entities):
        raise refusal("entities", "must be a list of non-empty strings")
    hops = given.get("hops", 2)
    if type(hops) is not int or not 1 <= hops <= _MAX_HOPS:
        raise refusal("hops", f"must be from 1 to {_MAX_HOPS}, got {hops!r}")
    paths += paths_of(triplets, entities=entities, hops=hops) if triplets else []
    if not 0 < len(paths) <= MAX_PATHS:
        raise RequestError(
            f"{FIELD} must give from 1 to {MAX_PATHS} paths, or triplets that chain up to them "
            f"from its entities, got {len(paths)}",
            param=FIELD,
        )
    attention = given.get("attention", "auto")
    if attention not in _ATTENTIONS:
        raise refusal("attention", f"must be one of {', '.join(_ATTENTIONS)}, got {attention!r}")
    ratio = given.get("recompute_ratio")
    is_number = isinstance(ratio, int | float) and not isinstance(ratio, bool)
    if ratio is not None and not (is_number and 0 <= ratio <= 1):
        raise refusal("recompute_ratio", f"must be a number from 0 to 1, got {ratio!r}")
    return GraphRequest(tuple(paths), attention, None if ratio is None else float(ratio))


class PromptWriter:
    """Lays conversations with graphs out in token ids. Call it in the tokenizer's thread.

    Args:
        tokenizer: of the model.
    """

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._segment_ids = lru_cache(_CACHED_SEGMENTS)(self._encode)

    def prompt(
        self,
        paths: Sequence[RelationPath],
        messages: Sequence[Mapping[str, Any]],
        *,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> DepPrompt:
        """Return what the template writes before the paths, the paths as a tree, and the rest.

        The paths stand in front of the first user message, behind the same text for every question.

        Raises:
            RequestError: there is no user message, or the template leaves the paths out.
        """
        before, after = self._around(messages, template_kwargs)
        tokens = [
            [token for segment in path_segments(path) for token in self._segment_ids(segment)]
            for path in paths
        ]
        return DepPrompt.of(before, tokens, after)

    def subgraphs(
        self,
        paths: Sequence[RelationPath],
        messages: Sequence[Mapping[str, Any]],
        *,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> DepPrompt:
        """Return the same with the paths written out, those of each root as a part of its own that
        does not see the others.

        Raises:
            RequestError: as `prompt`.
        """
        before, after = self._around(messages, template_kwargs, ends_line=True)
        by_root: dict[str, list[RelationPath]] = {}
        for path in paths:
            by_root.setdefault(path.root, []).append(path)
        parts = [
            LinearNode(f"subgraph {root}", self._segment_ids(path_text(found) + "\n"), ("system",))
            for root, found in by_root.items()
        ]
        seen = ("system", *(part.name for part in parts))
        return DepPrompt((LinearNode("system", before), *parts, LinearNode("task", after, seen)))

    def _around(
        self,
        messages: Sequence[Mapping[str, Any]],
        template_kwargs: Mapping[str, Any] | None,
        *,
        ends_line: bool = False,
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return what stands before and behind the paths; their last line may end with them."""
        marker = "ragboost-graph"
        while any(marker in message["content"] for message in messages):
            marker += "-x"
        text = self._tokenizer.render_chat(
            with_facts(messages, marker), template_kwargs=template_kwargs
        )
        before, found, after = text.partition(marker)
        if not found:
            raise RequestError(
                "the model's chat template leaves out the message with the graph", param="messages"
            )
        after = after.removeprefix("\n") if ends_line else after
        return self._encode(before), self._encode(after)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


def with_facts(messages: Sequence[Mapping[str, Any]], facts: str) -> list[dict[str, Any]]:
    """Return the messages with facts in front of the first user message."""
    first = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        raise RequestError(f"{FIELD} needs a user message", param="messages")
    return [
        {**message, "content": f"{INTRO}{facts}\n\n{message['content']}"}
        if i == first
        else dict(message)
        for i, message in enumerate(messages)
    ]


def _path(value: Any, number: int) -> RelationPath:
    is_texts = isinstance(value, list) and all(isinstance(p, str) and p.strip() for p in value)
    if not is_texts or len(value) % 2 == 0:
        raise refusal(
            f"paths[{number}]",
            "must be [entity, relation, entity, ...], an odd number of texts, got "
            + repr(value)[:80],
        )
    return RelationPath(tuple(part.strip() for part in value))


def _list(given: Mapping[str, Any], name: str) -> list[Any]:
    value = given.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > MAX_PATHS:
        raise refusal(name, f"must be a list of at most {MAX_PATHS}")
    return value


def refusal(name: str, says: str) -> RequestError:
    """Return the error of a field of the object."""
    return RequestError(f"{FIELD}.{name} {says}", param=f"{FIELD}.{name}")
