"""Write conversations with relation paths in token ids, for dependency attention or as text. Does
not know how a tokenizer or a chat template works, or HTTP."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, Protocol

from ragboost.errors import RequestError
from ragboost.graph.depcache import DepCache
from ragboost.graph.layout import DepPrompt, Layout, LinearNode
from ragboost.graph.request import FIELD, GraphFields, RelationPath, path_segments, path_text

INTRO = "Facts:\n"
_CACHED_SEGMENTS = 65_536

Messages = Sequence[Mapping[str, Any]]  # with string contents
GraphAttention = Literal["dependency", "subgraphs", "self"]


class ChatEncoder(Protocol):
    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...

    def render_chat(
        self, messages: Messages, *, template_kwargs: Mapping[str, Any] | None = ...
    ) -> str: ...


@dataclass(frozen=True)
class GraphPrompts:
    """Lays out graph requests for one engine; call it in the tokenizer's thread."""

    tokenizer: ChatEncoder
    _: KW_ONLY
    depcache: DepCache | None  # lays out token trees; None: there is no dependency attention
    attention: GraphAttention  # of graphs, unless a request asks for `self`
    reason: str | None  # why that is not dependency attention; None: it is

    @cached_property
    def _writer(self) -> "PromptWriter":
        return PromptWriter(self.tokenizer)

    def prompt(
        self, request: GraphFields, messages: Messages, *, template_kwargs: Mapping[str, Any]
    ) -> Layout | list[int]:
        """Return the prompt of a conversation with a graph, its last token at its slot; as token
        ids for ordinary attention.
        Raises `RequestError`, also for an attention that this engine does not have."""
        if request.attention not in ("auto", "self", self.attention):
            reason = self.reason or "engine.graph_attention is dependency"
            raise RequestError(
                f"{FIELD}.attention cannot be {request.attention} here: {reason}",
                param=f"{FIELD}.attention",
            )
        paths = request.relation_paths()
        if "self" in (request.attention, self.attention) or self.depcache is None:
            text = self.tokenizer.render_chat(
                with_facts(messages, path_text(paths)), template_kwargs=template_kwargs
            )
            return self.tokenizer.encode(text, add_special_tokens=False)
        prompt = self._writer.prompt(
            paths,
            messages,
            is_tree=self.attention == "dependency",
            template_kwargs=template_kwargs,
        )
        return self.depcache.layout(prompt).with_last_in_place()


class PromptWriter:
    def __init__(self, tokenizer: ChatEncoder) -> None:
        self._tokenizer = tokenizer
        self._segment_ids = lru_cache(_CACHED_SEGMENTS)(self._encode)

    def prompt(
        self,
        paths: Sequence[RelationPath],
        messages: Messages,
        *,
        is_tree: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> DepPrompt:
        """Return the text before the paths, the paths, and the text after them, in front of the
        first user message. In a tree, paths that begin alike share tokens; else they are written
        out, and those of one root form a subgraph that does not attend to the others."""
        before, after = self._around(messages, template_kwargs, ends_line=not is_tree)
        if is_tree:
            tokens = [
                [token for segment in path_segments(path) for token in self._segment_ids(segment)]
                for path in paths
            ]
            return DepPrompt.of(before, tokens, after)
        by_root: dict[str, list[RelationPath]] = {}
        for path in paths:
            by_root.setdefault(path[0], []).append(path)
        parts = [
            LinearNode(f"subgraph {root}", self._segment_ids(path_text(own) + "\n"), ("system",))
            for root, own in by_root.items()
        ]
        names = ("system", *(part.name for part in parts))
        return DepPrompt((LinearNode("system", before), *parts, LinearNode("task", after, names)))

    def _around(
        self, messages: Messages, template_kwargs: Mapping[str, Any] | None, *, ends_line: bool
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        marker = "ragboost-graph"
        while any(marker in message["content"] for message in messages):
            marker += "-x"
        text = self._tokenizer.render_chat(
            with_facts(messages, marker), template_kwargs=template_kwargs
        )
        before, separator, after = text.partition(marker)
        if not separator:
            raise RequestError(
                "the model's chat template omits the message with the graph", param="messages"
            )
        after = after.removeprefix("\n") if ends_line else after
        return self._encode(before), self._encode(after)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


def with_facts(messages: Messages, facts: str) -> list[dict[str, Any]]:
    copies = [dict(message) for message in messages]
    first = next((message for message in copies if message["role"] == "user"), None)
    if first is None:
        raise RequestError(f"{FIELD} needs a user message", param="messages")
    first["content"] = f"{INTRO}{facts}\n\n{first['content']}"
    return copies
