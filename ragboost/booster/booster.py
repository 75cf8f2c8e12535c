"""The Booster: the one place where index, ordering, de-duplication, sessions and hints meet.

Mirrors one prefix cache: one backend, model and cache salt. Knows documents and their lengths; does
not know HTTP, engines or request bodies.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from threading import RLock

from ragboost.booster.compose import Retrieved, behind, compose, drop_dear_hint
from ragboost.booster.context import Context, Plan
from ragboost.booster.planning import LivePlanner, order_that_pays, plan_offline
from ragboost.booster.residency import Residency, UsageReports, UsageTotals
from ragboost.booster.session_state import (
    CarriedDocuments,
    MemorySessions,
    SessionState,
    SessionStore,
    StoredConversations,
    Turn,
)
from ragboost.booster.tokens import TokenCounter, make_counter
from ragboost.config import Settings
from ragboost.errors import RequestError
from ragboost.index import ContextIndex, IndexEntry, Seat
from ragboost.ordering import (
    Order,
    OrderPolicy,
    Purchase,
    RentLedger,
    group_turns,
    make_order_policy,
    order_documents,
    order_exact_first,
)
from ragboost.types import Document, DocumentLike, Request, check_question


class Booster(StoredConversations, UsageReports):
    """The entry point of the library: orders, de-duplicates and hints documents.

    Thread-safe.

    Args:
        settings: None: the defaults.
        count_tokens: counts the tokens of a text; called once per document, while its first request
            waits. None: estimates, made exact in the background as `settings.tokens` says.
        tokens: document lengths shared with other Boosters of the same model; None: its own.
        sessions: the store of conversations; None: in memory, bounded by the settings.
        policy: of the tail, shared with other Boosters; None: its own.
        seat: the index's place in a directory; None: it is in none.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        count_tokens: Callable[[str], int] | None = None,
        tokens: TokenCounter | None = None,
        sessions: SessionStore | None = None,
        policy: OrderPolicy | None = None,
        seat: Seat | None = None,
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
            seat=seat,
        )
        if policy is None:
            policy = make_order_policy(self.settings.ordering, is_hinted=self.settings.hints.order)
        self._policy = policy
        self.rents = RentLedger()
        self._planner = LivePlanner(self.index, self.settings.ordering, self._policy)
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
        prompt_prefix: str = "",
        planned: Order | None = None,
        recompute_ratio: float | None = None,
        note: Callable[[Sequence[Document]], str] | None = None,
    ) -> Context:
        """Order, de-duplicate and hint one request's documents.

        Documents at the front of the payload are ordered for the longest cached prefix. Documents
        of later turns keep their relevance order: they follow the conversation's history, which no
        other request shares, so reordering them could not reuse anything.

        Args:
            documents: Documents, texts or mappings, most relevant first.
            session: the conversation; documents of its earlier turns are not sent again. Callers
                who keep the turns themselves pass a state, to which this turn is added.
            history: keys of the documents that this payload contains already, if the caller has
                parsed it, or a mapping of these keys to the labels that it shows; only these may be
                referred to. Empty: it contains no earlier turn. None: it contains all turns of the
                session.
            prompt_prefix: names the text before the first document; only requests with the same one
                share prefixes. Must be the same in all turns of a session.
            planned: the order that `plan_next` found for these documents; ignored in later turns,
                and with a recompute ratio.
            recompute_ratio: share of reused tokens that the engine computes again: exact documents
                (`IndexEntry.num_exact`) stand in front, the others by relevance, and an order hint
                costs at most a quarter of what the order saves. None: it computes all exactly.
            note: returns what the caller writes beside an order, which must save its tokens.

        Raises:
            InvalidDocumentError, RequestError: bad input; nothing has changed.
            ContextIndexError: an invariant does not hold; send the original request.
        """
        name = session.id if isinstance(session, SessionState) else session
        check_question(query, session=name)
        retrieved = self._retrieve(query, documents, prompt_prefix)
        with self._lock:
            boost = partial(self._boost, retrieved, session, history=history, planned=planned)
            return boost(ratio=recompute_ratio, note=note)

    def boost_batch(self, requests: Sequence[Request]) -> Plan:
        """Order a whole batch so that contexts share prefixes, and return it in release order.

        Documents at the front of their payload are planned together. Later turns of a session keep
        their relevance order and are released right after its first turn.
        `ordering.min_saved_tokens` does not apply, since a reordering pays off in later contexts.
        Requests of one session are given in turn order.
        """
        retrieved = [self._retrieve(r.query, r.documents, r.prompt_prefix) for r in requests]
        sessions = [request.session for request in requests]
        with self._lock:
            continued = {s for s in set(sessions) if s is not None and self.turns(s)}
        turns = group_turns(sessions, continued)
        leading = [retrieved[i] for i in turns.leading]
        orders, release = plan_offline(leading, settings=self.settings.ordering)
        planned = dict(zip(turns.leading, orders, strict=True))
        order = turns.release_order(release)
        contexts = []
        for i in order:
            with self._lock:
                contexts.append(self._boost(retrieved[i], sessions[i], planned=planned.get(i)))
        return Plan(tuple(contexts), order)

    def plan_next(self, requests: Sequence[Request], *, budget_tokens: float) -> tuple[int, Order]:
        """Plan which of a few requests that wait to send next, against the current prefix cache.

        For live traffic, unlike `boost_batch`: requests whose documents are at the front of their
        payloads. Changes nothing: the request counts as cached when `boost` is called with its
        `Order`. The others are planned again then, together with those that have arrived.

        Args:
            requests: those that wait; the first one is sent if no other may overtake it.
            budget_tokens: uncached tokens that may be sent before the first one.

        Returns:
            The position of the request, and the order of its documents.
        """
        if len(requests) == 1 or not self.settings.ordering.enabled:
            requests = requests[:1]
        retrieved = [self._retrieve(r.query, r.documents, r.prompt_prefix) for r in requests]
        with self._lock:
            if len(retrieved) == 1:
                return 0, self._order_alone(retrieved[0])
            return self._planner.plan_first(retrieved, budget_tokens=budget_tokens)

    def record(
        self,
        documents: Sequence[DocumentLike],
        *,
        prompt_prefix: str = "",
        recompute_ratio: float | None = None,
    ) -> IndexEntry:
        """Record that documents are sent unboosted, in this order, at the front of a payload."""
        retrieved = self._retrieve("", documents, prompt_prefix)
        with self._lock:
            purchase = self._buy(retrieved.elements, retrieved.tokens, recompute_ratio)
            return self._record(retrieved.elements, retrieved.tokens, purchase)

    def add_unboosted(self, state: SessionState, context: Context, *, is_leading: bool) -> Turn:
        """Add a turn to a conversation whose documents are sent unboosted, so that later turns may
        refer to them.

        Args:
            is_leading: they are at the front of the payload, with no earlier turn before them.
        """
        tokens = self.tokens.count_documents(context.documents)
        num_tokens = sum(tokens) + self.tokens.count(context.query)
        with self._lock:
            return state.add_sent(
                context,
                tokens,
                num_tokens=num_tokens,
                is_leading=is_leading,
            )

    def cached_tokens(self, documents: Sequence[DocumentLike], *, prompt_prefix: str = "") -> int:
        """Predict the cached tokens of these documents at the front of a boosted payload."""
        retrieved = self._retrieve("", documents, prompt_prefix)
        with self._lock:
            return self._order_alone(retrieved, has_tail=False).cached_tokens

    def arrive(self, request: Request, *, is_first: bool) -> int:
        """Predict the cached tokens of a request that begins to wait for `plan_next`, if all that
        wait were sent in order of arrival; `is_first`: nobody waits yet."""
        retrieved = self._retrieve(request.query, request.documents, request.prompt_prefix)
        with self._lock:
            return self._planner.arrive(retrieved, is_first=is_first)

    def session(self, session_id: str) -> "Session":
        """Return a conversation; it is stored from its first turn on."""
        if not isinstance(session_id, str) or not session_id:
            raise RequestError(
                f"session must be a non-empty string, got {session_id!r}", param="session"
            )
        return Session(self, session_id)

    def _retrieve(
        self, query: str, values: Sequence[DocumentLike], prompt_prefix: str
    ) -> Retrieved:
        self.residency.expire()
        count, has_copies = self.tokens.count_documents, not self.settings.dedup.enabled
        return Retrieved.of(query, values, prompt_prefix, count=count, has_copies=has_copies)

    def _order_alone(
        self, retrieved: Retrieved, *, has_tail: bool = True, is_reusing: bool = False
    ) -> Order:
        return order_documents(
            self.index,
            retrieved.elements,
            retrieved.tokens,
            settings=self.settings.ordering,
            policy=self._policy if has_tail else None,  # nothing behind the prefix is cached
            is_reusing=is_reusing,
        )

    def _boost(
        self,
        retrieved: Retrieved,
        session: str | SessionState | None,
        *,
        history: Collection[str] | None = None,
        planned: Order | None = None,
        ratio: float | None = None,
        note: Callable[[Sequence[Document]], str] | None = None,
    ) -> Context:
        """Boost one request. Changes index and session last, after all checks have passed."""
        settings = self.settings
        if isinstance(session, str):
            state: SessionState | None = self.sessions.get(session) or SessionState(session)
        else:
            state = session
        has_references = settings.dedup.enabled and settings.hints.location
        past = CarriedDocuments.of(state, history, has_references=has_references)
        order = self._order(retrieved, past, planned=planned, ratio=ratio)
        keep = settings.ordering.num_kept(is_reusing=ratio is not None)
        if note is not None and past.is_empty and not keep:
            pays = partial(order_that_pays, retrieved, order, index=self.index, note=note)
            order = pays(share=1.0 if ratio is None else ratio, count=self.tokens.count)
        purchase = self._buy(order.documents, order.tokens, ratio) if past.is_empty else None
        if purchase is not None:
            exact_first = order_exact_first(
                order.permutation, purchase.num_documents, keep_last=keep
            )
            order = retrieved.in_order(exact_first)
        context = compose(
            retrieved, order.permutation, history=past, settings=settings, state=state
        )
        num_tokens = sum(order.tokens)
        if state is not None or not past.is_empty:
            num_tokens += self.tokens.count(retrieved.query)
        if past.is_empty:
            self._policy.add(order.documents)
            entry = self._record(order.documents, order.tokens, purchase)
        else:
            entry = self._record_turn(state, retrieved.prompt_prefix, num_tokens)
        if state is not None:
            state.add_sent(
                context,
                order.tokens,
                num_tokens=num_tokens,
                is_leading=past.is_empty,
            )
            if state is not session:
                self.sessions.put(state)
        if ratio is not None:
            context = drop_dear_hint(context, ratio * entry.cached_tokens, count=self.tokens.count)
        return context.recorded(entry)

    def _buy(
        self, elements: Sequence[Hashable], tokens: Sequence[int], ratio: float | None
    ) -> Purchase | None:
        if ratio is None or not self.settings.ordering.enabled:  # the caller's order buys nothing
            return None
        self.rents.capacity_tokens = self.residency.capacity_tokens
        cached = self.index.cached_prefix(elements).cached_tokens
        return self.rents.decide(elements, tokens, cached_tokens=cached, ratio=ratio)

    def _record(
        self, elements: Sequence[Hashable], tokens: Sequence[int], purchase: Purchase | None
    ) -> IndexEntry:
        num_exact, bought_tokens = purchase if purchase is not None else (None, 0)
        entry = self.index.record_leading(
            elements, tokens, num_exact=num_exact, bought_tokens=bought_tokens
        )
        self.residency.dispatched(entry)
        return entry

    def _order(
        self,
        retrieved: Retrieved,
        history: CarriedDocuments,
        *,
        planned: Order | None,
        ratio: float | None,
    ) -> Order:
        """Order the unique documents to send."""
        if not history.is_empty:
            carried = history.carried
            return retrieved.in_order(
                [i for i, doc in enumerate(retrieved.unique) if doc.key not in carried]
            )
        if not self.settings.ordering.enabled:
            return retrieved.in_order(range(len(retrieved.unique)))
        if ratio is None and planned is not None and planned.fits(retrieved.elements):
            return planned
        return self._order_alone(retrieved, is_reusing=ratio is not None)

    def _record_turn(
        self, state: SessionState | None, prompt_prefix: str, num_tokens: int
    ) -> IndexEntry:
        leading = state.leading_turn() if state else None
        entry = self.index.record_turn(
            behind(prompt_prefix, leading.keys if leading else ()),
            leading.tokens if leading else (),
            history_tokens=state.later_tokens() if state else 0,
            turn_tokens=num_tokens,
        )
        self.residency.note_use()
        return entry


class Session:
    """One conversation of a Booster, created by `Booster.session`.

    Each prompt must contain the earlier turns, as chat clients send them: location hints refer to
    them. Call `rollback` for a turn that was not sent.
    """

    def __init__(self, booster: Booster, session_id: str) -> None:
        self.id = session_id
        self._booster = booster

    def __repr__(self) -> str:
        return f"{self._booster!r}.session({self.id!r})"

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The remembered turns, oldest first; empty before the first one and after expiry."""
        return self._booster.turns(self.id)

    def boost(
        self,
        query: str,
        documents: Sequence[DocumentLike],
        *,
        history: Collection[str] | None = None,
    ) -> Context:
        """Boost the conversation's next turn; see `Booster.boost`."""
        return self._booster.boost(query, documents, session=self.id, history=history)

    def rollback(self, context: Context) -> None:
        """Remove a turn that was not sent, and all later ones; see `Booster.rollback`."""
        self._booster.rollback(context)

    def forget(self) -> None:
        """Remove the conversation: the next turn is a first one."""
        self._booster.forget(self.id)
