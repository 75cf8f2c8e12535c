"""The Booster: the one place where index, ordering, de-duplication, sessions and hints meet.

Mirrors one prefix cache: one backend, model and cache salt. Knows documents and their lengths; does
not know HTTP, engines or request bodies.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from threading import RLock
from typing import NamedTuple

from ragboost.config import Settings
from ragboost.dedup import split_carried, unique_documents
from ragboost.errors import RequestError
from ragboost.hints import label_documents, location_hints, order_hint
from ragboost.index import ContextIndex, Node
from ragboost.invariants import check_context
from ragboost.ordering import order_documents, plan_batch
from ragboost.ordering.turns import group_turns
from ragboost.session import MemorySessions, SentDocument, Session, SessionState, SessionStore, Turn
from ragboost.tokens import TokenCounter
from ragboost.types import Context, Document, DocumentLike, Hint, Plan, Request, as_documents


class Usage(NamedTuple):
    """What `Booster.report_usage` has added up, in tokens."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    predicted_cached_tokens: int = 0


class _Retrieved(NamedTuple):
    """A request before it is placed: duplicates told apart, lengths counted."""

    query: str
    documents: tuple[Document, ...]  # as given
    unique: tuple[Document, ...]
    slots: tuple[int, ...]  # for each of `documents`, its index in `unique`
    elements: tuple[Hashable, ...]  # for each of `unique`, its name in the index
    tokens: list[int]


class _Choice(NamedTuple):
    """What the payload gets of a request's unique documents, all by index."""

    sent: tuple[int, ...]  # in prompt order
    carried: tuple[int, ...]  # an earlier turn carries them; most relevant first
    is_leading: bool  # no earlier turn stands before them


class Booster:
    """Put documents in the order that reuses the prefix cache, once each, with hints.

    Safe to call from several threads.

    Args:
        settings: None: the defaults.
        count_tokens: tokens of a text, called once per document; None: an estimate.
        sessions: where conversations are remembered; None: in memory, bounded by the settings.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        count_tokens: Callable[[str], int] | None = None,
        sessions: SessionStore | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.tokens = TokenCounter(count_tokens)
        self.sessions: SessionStore = sessions or MemorySessions(
            max_sessions=self.settings.session.max_sessions, ttl_s=self.settings.session.ttl_s
        )
        self.index = ContextIndex(
            capacity_tokens=self.settings.index.capacity_tokens,
            max_nodes=self.settings.index.max_nodes,
            max_visits=self.settings.index.max_visits,
        )
        self.usage = Usage()
        self._lock = RLock()  # guards index, sessions and usage

    def __repr__(self) -> str:
        return f"Booster({self.settings!r})"

    def boost(
        self,
        query: str,
        documents: Sequence[DocumentLike],
        *,
        session: str | None = None,
        history: Collection[str] | None = None,
    ) -> Context:
        """Order, de-duplicate and hint one request's documents.

        Documents at the front of the payload are ordered for the longest cached prefix. Those of
        later turns keep their relevance order: they stand behind the conversation's history, which
        no other request shares, so that another order could not reuse anything.

        Args:
            query: the question.
            documents: Documents, texts or mappings, most relevant first.
            session: the conversation; its documents of earlier turns are not sent again.
            history: keys of the documents that stand in this very payload already, for a caller
                who has read it; only these may be referred to, and an empty one means that no
                earlier turn does. None: all turns of the session are resent.

        Raises:
            InvalidDocumentError, RequestError: bad input; nothing has changed then.
            ContextIndexError: an invariant does not hold; send the original request.
        """
        retrieved = self._retrieve(Request(query, tuple(as_documents(documents)), session=session))
        with self._lock:
            return self._boost(retrieved, session, history=history)

    def boost_batch(self, requests: Sequence[Request]) -> Plan:
        """Order a whole batch so that contexts share prefixes, and say in which order to send it.

        Documents at the front of their payload are planned together; later turns of a session keep
        their relevance order and follow their first turn. `ordering.min_saved_tokens` does not
        apply: what a reordering saves shows only in the contexts that follow.

        Args:
            requests: of one session in turn order.

        Raises:
            InvalidDocumentError, RequestError, ContextIndexError: as `boost`.
        """
        retrieved = [self._retrieve(request) for request in requests]
        sessions = [request.session for request in requests]
        with self._lock:
            going_on = {s for s in set(sessions) if s is not None and self.turns(s)}
        turns = group_turns(sessions, going_on)
        permutations, release = self._plan([retrieved[i] for i in turns.leading])
        planned = {i: permutations[at] for at, i in enumerate(turns.leading)}
        order = turns.release_order(release)
        contexts = []
        for i in order:
            with self._lock:
                contexts.append(self._boost(retrieved[i], sessions[i], permutation=planned.get(i)))
        return Plan(tuple(contexts), order)

    def session(self, session_id: str) -> Session:
        """A conversation; it is remembered from its first turn on."""
        if not isinstance(session_id, str) or not session_id:
            raise RequestError(
                f"session must be a non-empty string, got {session_id!r}", param="session"
            )
        return Session(self, session_id)

    def turns(self, session_id: str) -> tuple[Turn, ...]:
        """The remembered turns of a conversation, oldest first; empty for an unknown one."""
        with self._lock:
            state = self.sessions.get(session_id)
            return tuple(state.turns) if state else ()

    def rollback(self, context: Context) -> None:
        """Take back a turn that was not sent, and all later ones of its session.

        Without this, a later turn would refer to documents that the model never got. Does nothing
        for a context without a session. Not needed where `history` is passed.
        """
        if context.session is None:
            return
        with self._lock:
            state = self.sessions.get(context.session)
            if state is not None:
                state.rollback(context.turn)
                self.sessions.put(state)

    def forget(self, session_id: str) -> bool:
        """Forget a conversation; False if it was unknown."""
        with self._lock:
            return self.sessions.remove(session_id)

    def report_usage(self, context: Context, *, prompt_tokens: int, cached_tokens: int) -> None:
        """Add what the engine reported for a context to `usage`.

        Raises:
            RequestError: not 0 <= cached_tokens <= prompt_tokens.
        """
        if not 0 <= cached_tokens <= prompt_tokens:
            raise RequestError(
                f"cached_tokens must be between 0 and prompt_tokens={prompt_tokens}, "
                f"got {cached_tokens}",
                param="cached_tokens",
            )
        with self._lock:
            self.usage = Usage(
                self.usage.requests + 1,
                self.usage.prompt_tokens + prompt_tokens,
                self.usage.cached_tokens + cached_tokens,
                self.usage.predicted_cached_tokens + context.predicted_cached_tokens,
            )

    def _retrieve(self, request: Request) -> _Retrieved:
        documents = request.documents
        if self.settings.dedup.enabled:
            unique, slots = unique_documents(documents)
            elements: tuple[Hashable, ...] = tuple(document.key for document in unique)
        else:
            unique, slots = documents, tuple(range(len(documents)))
            elements = _distinct([document.key for document in documents])
        tokens = self.tokens.count_documents(unique)
        return _Retrieved(request.query, documents, unique, slots, elements, tokens)

    def _plan(
        self, leading: Sequence[_Retrieved]
    ) -> tuple[Sequence[tuple[int, ...]], Sequence[int]]:
        """Prompt order of each context, and the release order of them all."""
        ordering = self.settings.ordering
        if not ordering.enabled:
            return [tuple(range(len(r.elements))) for r in leading], range(len(leading))
        plan = plan_batch(
            [r.elements[ordering.keep_last :] for r in leading],
            [r.tokens[ordering.keep_last :] for r in leading],
            linkage=ordering.linkage,
            alpha=ordering.alpha,
        )
        return [
            _with_last(permutation, min(ordering.keep_last, len(r.elements)))
            for permutation, r in zip(plan.permutations, leading, strict=True)
        ], plan.release_order

    def _boost(
        self,
        retrieved: _Retrieved,
        session: str | None,
        *,
        history: Collection[str] | None = None,
        permutation: Sequence[int] | None = None,
    ) -> Context:
        """Place one request. Index and session are changed last, when all checks have passed."""
        state = (self.sessions.get(session) or SessionState(session)) if session else None
        known = state.labels() if state else {}
        carried = self._carried(known, history)
        has_history = bool(history) if history is not None else bool(state and state.turns)
        choice = self._choose(retrieved, carried, is_leading=not has_history, plan=permutation)
        documents = tuple(retrieved.unique[i] for i in choice.sent)
        labels = label_documents(
            documents, template=self.settings.hints.label_template, known=known
        )
        hints = self._hints(retrieved, choice, labels=labels, carried=carried)
        places = {i: place for place, i in enumerate(choice.sent)}
        positions = tuple(places.get(slot, -1) for slot in retrieved.slots)
        check_context(
            retrieved.documents,
            documents,
            positions=positions,
            labels=labels,
            hints=hints,
            known=known,
            history=carried,
            allow_copies=not self.settings.dedup.enabled,
        )
        turn = self._turn(retrieved, choice, labels=labels, number=state.next_turn if state else 0)
        search_path, cached_tokens = self._record(turn, state, retrieved, choice)
        return Context(
            query=retrieved.query,
            documents=documents,
            retrieved=retrieved.documents,
            positions=positions,
            labels=labels,
            hints=hints,
            hint_position=self.settings.hints.position,
            search_path=search_path,
            predicted_cached_tokens=cached_tokens,
            session=session,
            turn=turn.number,
        )

    def _carried(
        self, known: Mapping[str, str], history: Collection[str] | None
    ) -> Mapping[str, str]:
        """Label by key of the documents that may be referred to instead of being sent again."""
        if not (self.settings.dedup.enabled and self.settings.hints.location):
            return {}
        if history is None:
            return known
        return {key: known[key] for key in history if key in known}

    def _choose(
        self,
        retrieved: _Retrieved,
        carried: Mapping[str, str],
        *,
        is_leading: bool,
        plan: Sequence[int] | None,
    ) -> _Choice:
        if not is_leading:
            new, old = split_carried(retrieved.unique, carried)
            return _Choice(new, old, False)
        if not self.settings.ordering.enabled:
            plan = range(len(retrieved.unique))
        if plan is None:
            plan = order_documents(
                self.index,
                retrieved.elements,
                retrieved.tokens,
                settings=self.settings.ordering,
            ).permutation
        return _Choice(tuple(plan), (), True)

    def _hints(
        self,
        retrieved: _Retrieved,
        choice: _Choice,
        *,
        labels: Sequence[str],
        carried: Mapping[str, str],
    ) -> tuple[Hint, ...]:
        settings = self.settings.hints
        hints = location_hints(
            [carried[retrieved.unique[i].key] for i in choice.carried],
            template=settings.location_template,
        )
        by_relevance = sorted(range(len(choice.sent)), key=choice.sent.__getitem__)
        if settings.order and by_relevance != list(range(len(choice.sent))):
            relevance = [labels[place] for place in by_relevance]
            hints += (order_hint(relevance, template=settings.order_template),)
        return hints

    def _turn(
        self, retrieved: _Retrieved, choice: _Choice, *, labels: Sequence[str], number: int
    ) -> Turn:
        sent = tuple(
            SentDocument(retrieved.unique[i].key, label, retrieved.tokens[i])
            for i, label in zip(choice.sent, labels, strict=True)
        )
        num_tokens = sum(document.num_tokens for document in sent)
        return Turn(
            number, choice.is_leading, sent, num_tokens + self.tokens.count(retrieved.query)
        )

    def _record(
        self, turn: Turn, state: SessionState | None, retrieved: _Retrieved, choice: _Choice
    ) -> tuple[tuple[int, ...], int]:
        """Tell index and session what is sent; the search path and the tokens cached before."""
        if turn.is_leading:
            elements = [retrieved.elements[i] for i in choice.sent]
            cached_tokens, _ = resident_prefix(self.index, elements)
            node = self.index.insert(elements, [retrieved.tokens[i] for i in choice.sent])
        else:
            node, cached_tokens = self._extend(turn, state)
        if state is not None:
            state.add(turn, max_documents=self.settings.session.max_documents)
            self.sessions.put(state)
        return node.search_path, cached_tokens

    def _extend(self, turn: Turn, state: SessionState | None) -> tuple[Node, int]:
        """Lengthen the node of the conversation's first documents by a later turn (paper 4.1).

        The turn's own documents are no child of that node: answers stand between, so no other
        request could reuse them.
        """
        front = state.front() if state else ()
        if not front:
            return self.index.root, 0
        history_tokens = state.tail_tokens() if state else 0
        elements = _distinct([sent.key for sent in front])
        cached_tokens, end = resident_prefix(self.index, elements)
        cached_history = min(end.generated_tokens, history_tokens) if end else 0
        node = self.index.insert(elements, [sent.num_tokens for sent in front], multi_turn=True)
        self.index.extend(node, history_tokens - cached_history + turn.num_tokens)
        return node, cached_tokens + cached_history


def resident_prefix(index: ContextIndex, documents: Sequence[Hashable]) -> tuple[int, Node | None]:
    """Resident tokens of a sequence's longest cached prefix, and the node where all of it ends.

    The node is None if not the whole sequence is resident or it ends inside a node.
    """
    node, at, total = index.root, 0, 0
    while at < len(documents):
        child = node.children.get(documents[at])
        if child is None:
            return total, None
        run = child.documents
        end = next(
            (i for i, d in enumerate(run) if at + i == len(documents) or d != documents[at + i]),
            len(run),
        )
        total += child.resident_prefix(end)
        if end < len(run) or child.num_tokens < sum(child.tokens):
            return total, None
        node, at = child, at + end
    return total, node


def _distinct(keys: Sequence[str]) -> tuple[Hashable, ...]:
    """Name the copies of a document apart: the index wants distinct elements."""
    seen: dict[str, int] = {}
    elements: list[Hashable] = []
    for key in keys:
        copy = seen[key] = seen.get(key, -1) + 1
        elements.append((key, copy) if copy else key)
    return tuple(elements)


def _with_last(permutation: Sequence[int], num_last: int) -> tuple[int, ...]:
    """Put the `num_last` most relevant documents behind a permutation of the others."""
    return (*(i + num_last for i in permutation), *range(num_last))
