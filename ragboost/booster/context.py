"""The ordered documents of one request, and their rendering as prompt text or chat messages.

The prompt begins with the documents, and their bytes depend only on their sequence, so contexts
with equal leading documents begin with equal bytes.
"""

from dataclasses import dataclass, field, replace
from typing import Self

from ragboost.index import IndexEntry
from ragboost.types import Document, Hint


@dataclass(frozen=True, slots=True)
class Context:
    """The ordered documents of one request, ready to be rendered.

    Every retrieved document is in `documents` or is named by a location hint.
    """

    query: str  #: the user's question
    #: The documents of this payload, in prompt order, without duplicates.
    documents: tuple[Document, ...]
    #: The documents that the caller gave, in relevance order, without blank ones.
    retrieved: tuple[Document, ...]
    #: For each of `retrieved`, its index in `documents`; -1 if an earlier turn contains it and a
    #: location hint refers to it.
    positions: tuple[int, ...]
    #: For each of `documents`, its label in prompt and hints, such as `[Doc_7]`.
    labels: tuple[str, ...]
    #: Location hints, then the order hint; empty if nothing was moved or dropped.
    hints: tuple[Hint, ...] = ()
    #: False: the order hint is left out, since it costs more than the order saves.
    is_order_hinted: bool = True
    #: Child positions from the root of the context index (paper section 4.1).
    search_path: tuple[int, ...] = ()
    #: Tokens of the documents at the front of the payload, and of the earlier turns, that the
    #: prefix cache should hold.
    predicted_cached_tokens: int = 0
    session: str | None = None  #: the conversation; None if the request is not part of one
    num_blank: int = 0  #: documents without text, which are left out
    turn: int = 0  #: number of the request in its session, from 1; 0 without a session
    #: Its record in the context index, for `Booster.report_usage`; None for later turns.
    index_entry: IndexEntry | None = field(default=None, repr=False, compare=False)

    @property
    def bought_tokens(self) -> int:
        """Tokens of the documents that are computed exactly though they might have been reused."""
        return self.index_entry.bought_tokens if self.index_entry is not None else 0

    def without_order_hint(self) -> "Context":
        hints = tuple([hint for hint in self.hints if hint.kind != "order"])
        return replace(self, hints=hints, is_order_hinted=False)

    def recorded(self, entry: IndexEntry) -> Self:
        """Add its record in the index, once: for its maker, before others have it."""
        put = object.__setattr__  # a copy takes ten times as long
        put(self, "search_path", entry.search_path)
        put(self, "predicted_cached_tokens", entry.cached_tokens)
        put(self, "index_entry", entry if entry.documents else None)
        return self

    def render(self) -> str:
        """Return the prompt: documents, hints and question; see `ragboost.booster.context`."""
        return self.render_documents() + self.render_question()

    def render_documents(self) -> str:
        """Return the first part of the prompt: a block for each document."""
        pairs = zip(self.documents, self.labels, strict=True)
        return "".join([render_document(document, label=label) for document, label in pairs])

    def render_question(self) -> str:
        """Return the second part of the prompt: the hints, one per line, and the question."""
        hints = "\n".join([hint.text for hint in self.hints])
        if not hints:
            return self.query
        return f"{hints}\n\n{self.query}"

    def messages(self, *, system: str | None = None) -> list[dict[str, str]]:
        """Return chat messages: a system message if given, and a user message with the prompt."""
        user = {"role": "user", "content": self.render()}
        return [user] if system is None else [{"role": "system", "content": system}, user]


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch in release order."""

    contexts: tuple[Context, ...]  #: one per request, in the order in which to send them
    #: For each of `contexts`, the position of its request in the caller's list.
    order: tuple[int, ...]


def render_document(document: Document, *, label: str) -> str:
    """Return a document's block: label and title on one line, then the text, then a blank line."""
    head = f"{label} {document.title}" if document.title else label
    return f"{head}\n{document.text}\n\n"
