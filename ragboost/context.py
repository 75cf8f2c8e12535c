"""The ordered documents of one request, and how they are written as prompt text or chat messages.

The document part's bytes depend only on the sequence of documents, and nothing stands before it:
contexts with equal leading documents begin with equal bytes. Does not know how an order is found,
request bodies or models' chat templates.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ragboost.types import Document, Hint


class IndexEntry(NamedTuple):
    """Where a request stands in the context index.

    Attributes:
        search_path: child positions from the root (paper section 4.1).
        cached_tokens: what the cache held of it before.
        documents: what was inserted, in prompt order; empty for a later turn.
        tokens: their lengths.
        num_cached: leading documents that the cache held something of.
        path: the nodes of that prefix: resident tokens up to each, and when it was last used.
        tick: when it was inserted.
    """

    search_path: tuple[int, ...]
    cached_tokens: int
    documents: tuple[Hashable, ...] = ()
    tokens: tuple[int, ...] = ()
    num_cached: int = 0
    path: tuple[tuple[int, int], ...] = ()
    tick: int = 0


@dataclass(frozen=True, slots=True)
class Context:
    """The ordered documents of one request, ready to be rendered.

    Every retrieved document stands in `documents` or is named by a location hint.

    Attributes:
        query: the user's question.
        documents: what this payload carries, in prompt order, without duplicates.
        retrieved: what the caller gave, in relevance order.
        positions: for each of `retrieved`, its index in `documents`; -1 where a location hint
            stands for it because an earlier turn carries it.
        labels: for each of `documents`, its label as prompt and hints show it, such as `[Doc_7]`.
        hints: location hints, then the order hint; empty if nothing moved and nothing was dropped.
        hint_position: where the hints stand.
        search_path: child positions from the root of the context index (paper 4.1).
        predicted_cached_tokens: tokens of the documents at the front of the payload, and of the
            earlier turns, that the prefix cache should hold.
        session: the conversation; None if the request stands alone.
        turn: number of the request in its session, from 1; 0 if it stands alone.
        recorded: its entry in the context index, for `Booster.report_usage`; None for later turns.
    """

    query: str
    documents: tuple[Document, ...]
    retrieved: tuple[Document, ...]
    positions: tuple[int, ...]
    labels: tuple[str, ...]
    hints: tuple[Hint, ...] = ()
    hint_position: Literal["before_question", "after_question"] = "before_question"
    search_path: tuple[int, ...] = ()
    predicted_cached_tokens: int = 0
    session: str | None = None
    turn: int = 0
    recorded: IndexEntry | None = field(default=None, repr=False, compare=False)

    def render(self) -> str:
        """The prompt: documents, hints and question; see `ragboost.context`."""
        return render_prompt(self)

    def messages(self, *, system: str | None = None) -> list[dict[str, str]]:
        """Chat messages: the system prompt where given, then documents, hints and question."""
        return render_messages(self, system=system)


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch in release order.

    Attributes:
        contexts: one per request, in the order in which to send them.
        order: for each of `contexts`, the position of its request in the caller's list.
    """

    contexts: tuple[Context, ...]
    order: tuple[int, ...]


def render_document(document: Document, *, label: str) -> str:
    """One block: the label, the title where there is one, and the text on lines of its own."""
    head = f"{label} {document.title}" if document.title else label
    return f"{head}\n{document.text}\n\n"


def render_documents(context: "Context") -> str:
    """The document part: the blocks, one after another."""
    return "".join(
        render_document(document, label=label)
        for document, label in zip(context.documents, context.labels, strict=True)
    )


def render_question(context: Context) -> str:
    """The part behind the documents: the hints, a line each, and the question."""
    hints = "\n".join(hint.text for hint in context.hints)
    if not hints:
        return context.query
    if context.hint_position == "after_question":
        return f"{context.query}\n\n{hints}"
    return f"{hints}\n\n{context.query}"


def render_prompt(context: Context) -> str:
    """The whole prompt: documents, hints and question."""
    return render_documents(context) + render_question(context)


def render_messages(context: Context, *, system: str | None = None) -> list[dict[str, str]]:
    """Chat messages: the system prompt where given, and one user message."""
    user = {"role": "user", "content": render_prompt(context)}
    return [user] if system is None else [{"role": "system", "content": system}, user]
