"""Compose the content of one request's payload: documents, labels, positions and hints.

Pure: the caller says what the payload contains already and in which order to send the rest.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from ragboost.booster.context import Context
from ragboost.booster.session_state import CarriedDocuments, SessionState
from ragboost.config import Settings
from ragboost.dedup import distinct_elements, unique_documents
from ragboost.errors import ContextIndexError
from ragboost.hints import label_documents, location_hints, order_hint
from ragboost.ordering import Order
from ragboost.types import KEY_OF, Document, DocumentLike, Hint, as_documents

_HINT_SHARE = 0.25  # of the tokens that an order saves: the most that its hint may cost


class Retrieved(NamedTuple):
    """A request's documents, with duplicates identified and lengths counted."""

    query: str
    documents: tuple[Document, ...]  # as the caller gave them, in relevance order
    unique: tuple[Document, ...]
    elements: tuple[Hashable, ...]  # for each of `unique`, its name in the context index
    tokens: Sequence[int]  # for each of `unique`
    prompt_prefix: str = ""  # names the text before the first document
    num_blank: int = 0  # given, and left out

    @classmethod
    def of(
        cls,
        query: str,
        values: Sequence[DocumentLike],
        prompt_prefix: str,
        *,
        count: Callable[[Sequence[Document]], Sequence[int]],
        has_copies: bool,
    ) -> "Retrieved":
        """Read a request's documents; with `has_copies`, equal ones stay apart."""
        documents = tuple(as_documents(values))
        unique = documents if has_copies else unique_documents(documents)
        elements = behind(prompt_prefix, map(KEY_OF, unique))
        num_blank = len(values) - len(documents)
        return cls(query, documents, unique, elements, count(unique), prompt_prefix, num_blank)

    def in_order(self, permutation: Sequence[int], *, cached_tokens: int = 0) -> Order:
        """Return these documents, given by their index in `unique`, in prompt order."""
        return Order.of(self.elements, self.tokens, permutation, cached_tokens=cached_tokens)


def behind(prompt_prefix: str, keys: Iterable[str]) -> tuple[Hashable, ...]:
    """Name documents behind a prompt prefix in the context index, copies apart.

    A text keeps its hash, which indexes ask for some twenty times a request; a pair does not.
    """
    return distinct_elements([prompt_prefix + key for key in keys] if prompt_prefix else [*keys])


def compose(
    retrieved: Retrieved,
    sent: Sequence[int],
    *,
    history: CarriedDocuments,
    settings: Settings,
    state: SessionState | None = None,
) -> Context:
    """Compose the payload and check its invariants; it is not recorded in the index yet.

    Args:
        sent: indices into `retrieved.unique` in prompt order; `history` carries the others.
        state: of the request's conversation, without this turn.

    Raises:
        ContextIndexError: an invariant does not hold.
    """
    documents = tuple(map(retrieved.unique.__getitem__, sent))
    labels = label_documents(
        documents,
        template=settings.hints.label_template,
        known=history.known,
        owners=history.owners,
        is_complete=history.is_complete,
    )
    places = dict(zip(sent, range(len(sent)), strict=True))
    if len(retrieved.unique) == len(retrieved.documents):  # there may be copies all the same
        positions = tuple([places.get(i, -1) for i in range(len(retrieved.documents))])
    else:
        by_key = dict(zip(map(KEY_OF, documents), range(len(documents)), strict=True))
        positions = tuple([by_key.get(document.key, -1) for document in retrieved.documents])
    hints: tuple[Hint, ...] = ()
    if len(sent) < len(retrieved.unique):
        referred = [
            history.carried[document.key]
            for i, document in enumerate(retrieved.unique)
            if i not in places and document.key in history.carried
        ]
        template, num_carried = settings.hints.location_template, len(history.carried)
        hints = location_hints(referred, template=template, num_carried=num_carried)
    if settings.hints.order:
        order = list(map(places.__getitem__, sorted(sent)))
        hint = order_hint(labels, order, template=settings.hints.order_template)
        hints += (hint,) if hint is not None else ()
    context = Context(
        query=retrieved.query,
        documents=documents,
        retrieved=retrieved.documents,
        positions=positions,
        labels=labels,
        hints=hints,
        session=state.id if state is not None else None,
        turn=state.next_turn if state is not None else 0,
        num_blank=retrieved.num_blank,
    )
    check_context(context, history=history, allow_copies=not settings.dedup.enabled)
    return context


def drop_dear_hint(
    context: Context, saved_tokens: float, *, count: Callable[[str], int]
) -> Context:
    """Leave out an order hint that costs too much of what the order saves."""
    tokens = sum([count(hint.text) for hint in context.hints if hint.kind == "order"])
    return context.without_order_hint() if tokens > _HINT_SHARE * saved_tokens else context


def check_context(
    context: Context, *, history: CarriedDocuments, allow_copies: bool = False
) -> None:
    """Check that no document is lost, doubled or mixed up; runs on every request.

    A violation is our bug, never the caller's: the proxy then forwards the original request.

    Args:
        allow_copies: it may contain a document more than once.

    Raises:
        ContextIndexError: names the document and the violation.
    """
    documents, labels, positions = context.documents, context.labels, context.positions
    retrieved, hints = context.retrieved, context.hints
    if len(positions) != len(retrieved) or len(labels) != len(documents):
        raise ContextIndexError(
            f"{len(retrieved)} retrieved documents have {len(positions)} positions, "
            f"{len(documents)} documents have {len(labels)} labels"
        )
    if set(positions) - {-1} != set(range(len(documents))):
        raise ContextIndexError("the context contains a document that was not retrieved")
    named = {label for hint in hints if hint.kind == "location" for label in hint.labels}
    keys = list(map(KEY_OF, documents))
    given_keys = list(map(KEY_OF, retrieved))
    is_whole = -1 not in positions and list(map(keys.__getitem__, positions)) == given_keys
    for given, position in () if is_whole else zip(given_keys, positions, strict=True):
        if position >= 0:
            if keys[position] != given:
                raise ContextIndexError(f"document {given} is not at {position}")
        elif history.carried.get(given) not in named:
            raise ContextIndexError(f"document {given} is lost: no hint refers to it")
    if not allow_copies and len(set(keys)) != len(keys):
        raise ContextIndexError("the context contains a document twice")
    if not all(history.owners.get(label) in history.carried for label in named):
        raise ContextIndexError("a location hint refers to a document outside this payload")
    if len(set(labels)) == len(labels) and history.owners.keys().isdisjoint(labels):
        return
    owners: dict[str, str] = {}
    for key, label in zip(keys, labels, strict=True):
        owner = history.owners.get(label, key)
        if owners.setdefault(label, owner) != key:
            raise ContextIndexError(f"two documents have the label {label}")
