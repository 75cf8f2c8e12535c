"""The Booster: the one place where index, ordering, de-duplication, sessions and hints meet.

Mirrors one prefix cache: one backend, model and cache salt. Knows documents and their lengths; does
not know HTTP, engines or request bodies.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from threading import RLock
from typing import NamedTuple

from ragboost.booster.cache_model import Residency
from ragboost.booster.compose import CarriedDocuments, Retrieved, compose
from ragboost.booster.past_turns import add_turn, read_history
from ragboost.booster.planning import Planned, Window, plan_alone, plan_offline, plan_together
from ragboost.booster.session import MemorySessions, Session, SessionState, SessionStore, Turn
from ragboost.config import Settings
from ragboost.context import Context, IndexEntry, Plan
from ragboost.dedup import distinct_elements, split_carried, unique_documents
from ragboost.errors import RequestError
from ragboost.index import ContextIndex
from ragboost.index.record import record_front, record_turn
from ragboost.ordering import RecentContexts, order_documents
from ragboost.ordering.turns import group_turns
from ragboost.tokens import TokenCounter, make_counter
from ragboost.types import DocumentLike, Request


class UsageTotals(NamedTuple):
    """What `Booster.report_usage` has added up, in tokens."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    predicted_cached_tokens: int = 0


class Booster:
    """Put documents in the order that reuses the prefix cache, once each, with hints.

    Safe to call from several threads.

    Args:
        settings: None: the defaults.
        count_tokens: tokens of a text, called once per document while its first request waits;
            None: estimates, which `settings.tokens` makes exact in the background.
        tokens: lengths shared with other Boosters for the same model; None: its own.
        sessions: where conversations are remembered; None: in memory, bounded by the settings.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        count_tokens: Callable[[str], int] | None = None,
        tokens: TokenCounter | None = None,
        sessions: SessionStore | None = None,
    ) -> None:
        self.settings = settings or Settings()
        if tokens is None:
            tokens = make_counter(self.settings.tokens, count_tokens)
        self.tokens = tokens
        if sessions is None:
            sessions = MemorySessions(
                max_sessions=self.settings.session.max_sessions, ttl_s=self.settings.session.ttl_s
            )
        self.sessions: SessionStore = sessions
        self.index = ContextIndex(
            capacity_tokens=self.settings.index.capacity_tokens,
            max_nodes=self.settings.index.max_nodes,
            max_visits=self.settings.index.max_visits,
        )
        self._recent = RecentContexts() if self.settings.ordering.tail == "popularity" else None
        self._recent_windows = self._recent if self._recent is not None else RecentContexts()
        self.usage = UsageTotals()
        self._lock = RLock()  # guards index, sessions and usage
        self.residency = Residency(self.index, self._lock, ttl_s=self.settings.index.ttl_s)

    def __repr__(self) -> str:
        return f"Booster({self.settings!r})"

    def boost(
        self,
        query: str,
        documents: Sequence[DocumentLike],
        *,
        session: str | SessionState | None = None,
        history: Collection[str] | None = None,
        preamble: str = "",
        planned: Planned | None = None,
    ) -> Context:
        """Order, de-duplicate and hint one request's documents.

        Documents at the front of the payload are ordered for the longest cached prefix. Those of
        later turns keep their relevance order: they stand behind the conversation's history, which
        no other request shares, so that another order could not reuse anything.

        Args:
            query: the question.
            documents: Documents, texts or mappings, most relevant first.
            session: the conversation; its documents of earlier turns are not sent again. A caller
                who keeps its turns passes them as a state, to which this turn is added.
            history: keys of the documents that stand in this very payload already, for a caller
                who has read it; only these may be referred to, and an empty one means that no
                earlier turn does. None: all turns of the session are resent.
            preamble: names the text before the first document, for a caller who sends several;
                only requests with the same one share prefixes. One for all turns of a session.
            planned: what `plan_window` found for these documents; not used in later turns.

        Raises:
            InvalidDocumentError, RequestError: bad input; nothing has changed then.
            ContextIndexError: an invariant does not hold; send the original request.
        """
        name = session.id if isinstance(session, SessionState) else session
        request = Request(query, documents, session=name, preamble=preamble)  # type: ignore[arg-type]
        retrieved = self._retrieve(request)
        with self._lock:
            return self._boost(retrieved, session, history=history, planned=planned)

    def plan_window(self, requests: Sequence[Request]) -> Window:
        """Plan requests that wait at the same time, against what the prefix cache holds.

        Unlike `boost_batch` this is for live traffic: a few requests whose documents stand at the
        front of their payloads. Their new orders count as cached from now on, so that each is to
        be sent, by `boost` with its `Planned`. A single request is planned as `boost` does it.

        Raises:
            InvalidDocumentError: bad input; nothing has changed then.
        """
        retrieved = [self._retrieve(request) for request in requests]
        ordering = self.settings.ordering
        with self._lock:
            if len(retrieved) > 1 and ordering.enabled:
                return plan_together(
                    self.index, retrieved, settings=ordering, recent=self._recent_windows
                )
            planned = tuple(self._plan_alone(each) for each in retrieved)
            if self._recent is not None:
                for each in retrieved:
                    self._recent.add(each.elements)
            return Window(tuple(range(len(planned))), planned)

    def record(self, documents: Sequence[DocumentLike], *, preamble: str = "") -> IndexEntry:
        """Take in that these documents are sent in this order at a payload's front, unboosted."""
        retrieved = self._retrieve(_request(documents, preamble=preamble))
        with self._lock:
            recorded = record_front(self.index, retrieved.elements, retrieved.tokens)
            self.residency.dispatched(recorded)
            return recorded

    def cached_tokens(self, documents: Sequence[DocumentLike], *, preamble: str = "") -> int:
        """Tokens that the prefix cache could serve of these documents at a payload's front."""
        retrieved = self._retrieve(_request(documents, preamble=preamble))
        with self._lock:
            return self._plan_alone(retrieved).cached_tokens

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
        leading = [retrieved[i] for i in turns.leading]
        permutations, release = plan_offline(leading, settings=self.settings.ordering)
        planned = {i: permutations[at] for at, i in enumerate(turns.leading)}
        order = turns.release_order(release)
        contexts = []
        for i in order:
            with self._lock:
                contexts.append(self._boost(retrieved[i], sessions[i], order=planned.get(i)))
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

    def report_usage(
        self,
        context: Context,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        found_tokens: int | None = None,
    ) -> None:
        """Add what the engine reported for a context to `usage`, and correct index and estimates.

        A prefix that was expected to be cached and was not has been evicted, with everything that
        was not used since; see `Residency.answered`.

        Args:
            context: of the request.
            prompt_tokens: of the whole prompt.
            cached_tokens: of them, what was cached.
            found_tokens: of the cached ones, those in documents, for a caller who knows where these
                stand and corrects estimates himself; None: their share of the prompt.

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
            self.usage = UsageTotals(
                self.usage.requests + 1,
                self.usage.prompt_tokens + prompt_tokens,
                self.usage.cached_tokens + cached_tokens,
                self.usage.predicted_cached_tokens + context.predicted_cached_tokens,
            )
            if context.recorded is None:
                return
            if found_tokens is None:
                self.tokens.correct(self.tokens.count(context.render()), prompt_tokens)
                estimated = sum(context.recorded.tokens) + self.tokens.count(context.query)
                found_tokens = round(cached_tokens / max(prompt_tokens, 1) * estimated)
            self.residency.answered(
                context.recorded,
                cached_tokens=found_tokens,
                is_measured=self.is_measured(context),
            )

    def is_measured(self, context: Context) -> bool:
        """Whether the lengths with which a context was placed were counted, not estimated."""
        recorded = context.recorded
        return (
            recorded is not None
            and self.tokens.are_exact(document.key for document in context.documents)
            and recorded.tokens == tuple(self.tokens.count_documents(context.documents))
        )

    def _retrieve(self, request: Request) -> Retrieved:
        self.residency.expire()
        documents, preamble = request.documents, request.preamble
        if self.settings.dedup.enabled:
            unique, slots = unique_documents(documents)
            elements: tuple[Hashable, ...] = tuple(document.key for document in unique)
        else:
            unique, slots = documents, tuple(range(len(documents)))
            elements = distinct_elements([document.key for document in documents])
        tokens = self.tokens.count_documents(unique)
        elements = _behind(preamble, elements)
        return Retrieved(request.query, documents, unique, slots, elements, tokens, preamble)

    def _plan_alone(self, retrieved: Retrieved) -> Planned:
        ordering = self.settings.ordering
        return plan_alone(self.index, retrieved, settings=ordering, recent=self._recent)

    def _boost(
        self,
        retrieved: Retrieved,
        session: str | SessionState | None,
        *,
        history: Collection[str] | None = None,
        order: Sequence[int] | None = None,
        planned: Planned | None = None,
    ) -> Context:
        """Place one request. Index and session are changed last, when all checks have passed."""
        state: SessionState | None = None
        if isinstance(session, SessionState):
            state = session
        elif session:
            state = self.sessions.get(session) or SessionState(session)
        past = read_history(state, history, settings=self.settings)
        if planned is not None and planned.fits(retrieved.elements):
            order = planned.permutation
        sent = self._order(retrieved, past, planned=order)
        composed = compose(retrieved, sent, history=past, settings=self.settings)
        tokens = [retrieved.tokens[i] for i in sent]
        if past.is_empty:
            recorded = self._record_front(
                [retrieved.elements[i] for i in sent], tokens, planned=planned
            )
        else:
            recorded = self._record_turn(state, retrieved, tokens)
        turn = 0
        if state is not None:
            turn = add_turn(
                state,
                composed,
                tokens=tokens,
                query_tokens=self.tokens.count(retrieved.query),
                is_leading=past.is_empty,
                max_documents=self.settings.session.max_documents,
            )
            if state is not session:
                self.sessions.put(state)
        return Context(
            query=retrieved.query,
            documents=composed.documents,
            retrieved=retrieved.documents,
            positions=composed.positions,
            labels=composed.labels,
            hints=composed.hints,
            hint_position=self.settings.hints.position,
            search_path=recorded.search_path,
            predicted_cached_tokens=recorded.cached_tokens,
            recorded=recorded if recorded.documents else None,
            session=state.id if state else None,
            turn=turn,
        )

    def _order(
        self, retrieved: Retrieved, history: CarriedDocuments, *, planned: Sequence[int] | None
    ) -> Sequence[int]:
        """Indices of the unique documents to send, in prompt order."""
        if not history.is_empty:
            return split_carried(retrieved.unique, history.carried).new
        if not self.settings.ordering.enabled:
            return range(len(retrieved.unique))
        if planned is not None:
            return planned
        order = order_documents(
            self.index,
            retrieved.elements,
            retrieved.tokens,
            settings=self.settings.ordering,
            recent=self._recent,
        )
        return order.permutation

    def _record_front(
        self, elements: Sequence[Hashable], tokens: Sequence[int], *, planned: Planned | None
    ) -> IndexEntry:
        if planned is None and self._recent is not None:
            self._recent.add(elements)
        recorded = record_front(self.index, elements, tokens)
        self.residency.dispatched(recorded)
        if planned is not None and planned.elements == tuple(elements):
            # Planning has inserted it already: what the cache held before is not to be seen here.
            return recorded._replace(cached_tokens=planned.cached_tokens, path=(), num_cached=0)
        return recorded

    def _record_turn(
        self, state: SessionState | None, retrieved: Retrieved, tokens: Sequence[int]
    ) -> IndexEntry:
        front = state.front() if state else ()
        recorded = record_turn(
            self.index,
            _behind(retrieved.preamble, distinct_elements([sent.key for sent in front])),
            [sent.num_tokens for sent in front],
            history_tokens=state.tail_tokens() if state else 0,
            turn_tokens=sum(tokens) + self.tokens.count(retrieved.query),
        )
        self.residency.used()
        return recorded


def _request(documents: Sequence[DocumentLike], *, preamble: str) -> Request:
    return Request("", documents, preamble=preamble)  # type: ignore[arg-type]


def _behind(preamble: str, elements: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    """Elements that are equal only behind the same text."""
    return tuple((preamble, element) for element in elements) if preamble else elements
