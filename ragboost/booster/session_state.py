"""The turns of each conversation, and a store that keeps them in memory.

State is plain data: keys, labels and lengths, no texts. Does not know prompts, engines or HTTP.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import NamedTuple, Protocol

from ragboost.booster.context import Context
from ragboost.types import KEY_OF
from ragboost.util.bounded_map import BoundedMap

MAX_DOCUMENTS = 10_000
"""Documents remembered per session; beyond it the oldest turns are forgotten."""


class Turn(NamedTuple):
    number: int  # counts from 1; never reused within a session
    # Its documents are at the front of the prompt, with no earlier turn before them.
    is_leading: bool
    num_tokens: int  # length of documents and question
    # Of the documents that it sent in full, in prompt order.
    keys: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()


@dataclass(slots=True)
class SessionState:
    """A conversation's turns, oldest first."""

    id: str  # the caller's name for the conversation
    # The remembered turns; the oldest ones may have been forgotten.
    turns: list[Turn] = field(default_factory=list)
    next_turn: int = 1  # number of the next turn
    has_forgotten: bool = False  # some turns were forgotten, so labels may exist that are not known

    # What `_sum_up` has found in the first turns, so that a turn takes the same time at any number.
    _num_summed: int = field(default=0, init=False, repr=False, compare=False)
    _num_documents: int = field(default=0, init=False, repr=False, compare=False)
    _labels: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    _owners: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    _leading: Turn | None = field(default=None, init=False, repr=False, compare=False)
    _later_tokens: int = field(default=0, init=False, repr=False, compare=False)

    def labels(self) -> Mapping[str, str]:
        """Return the label of each document by key; valid until the next turn."""
        self._sum_up()
        return self._labels

    def owners(self) -> Mapping[str, str]:
        """Return the document's key of each label; valid until the next turn."""
        self._sum_up()
        return self._owners

    def leading_turn(self) -> Turn | None:
        """Return the last turn whose documents are at the front of the prompt, if any."""
        self._sum_up()
        return self._leading

    def later_tokens(self) -> int:
        """Return the length of the turns after the last leading one."""
        self._sum_up()
        return self._later_tokens

    def add(self, turn: Turn, *, max_documents: int = MAX_DOCUMENTS) -> None:
        """Append a turn, and forget the oldest ones while they hold more than `max_documents`.

        The new turn is always kept.
        """
        self.turns.append(turn)
        self.next_turn = turn.number + 1
        if len(self.turns) == 1:
            return
        self._sum_up()
        total, num_forgotten = self._num_documents, 0
        while total > max_documents and num_forgotten < len(self.turns) - 1:
            total -= len(self.turns[num_forgotten].keys)
            num_forgotten += 1
        if num_forgotten:
            self._replace_turns(self.turns[num_forgotten:])
            self.has_forgotten = True

    def add_sent(
        self,
        context: Context,
        tokens: Sequence[int],
        *,
        num_tokens: int,
        is_leading: bool,
    ) -> Turn:
        """Add the next turn, with the lengths of its documents."""
        keys = tuple(map(KEY_OF, context.documents))
        documents = keys, context.labels, tuple(tokens)
        turn = Turn(self.next_turn, is_leading, num_tokens, *documents)
        self.add(turn)
        return turn

    def rollback(self, number: int) -> None:
        """Remove turn `number` and all later ones, which may refer to it."""
        self._replace_turns([turn for turn in self.turns if turn.number < number])

    def _replace_turns(self, turns: list[Turn]) -> None:
        self.turns = turns
        self._num_summed = self._num_documents = self._later_tokens = 0
        self._labels, self._owners, self._leading = {}, {}, None

    def _sum_up(self) -> None:
        if self._num_summed == len(self.turns):
            return
        for turn in self.turns[self._num_summed :]:
            self._labels.update(zip(turn.keys, turn.labels, strict=True))
            self._owners.update(zip(turn.labels, turn.keys, strict=True))
            self._num_documents += len(turn.keys)
            if turn.is_leading:
                self._leading, self._later_tokens = turn, 0
            else:
                self._later_tokens += turn.num_tokens
        self._num_summed = len(self.turns)


class CarriedDocuments(NamedTuple):
    """Documents that the earlier turns of a payload contain. Maps give labels by document key."""

    known: Mapping[str, str]  # all documents remembered of the session
    carried: Mapping[str, str]  # those in this payload to which a location hint may refer
    is_empty: bool  # this payload contains no earlier turn
    is_complete: bool  # every document of the earlier turns in this payload is in `known`
    owners: Mapping[str, str]  # keys by label: `known` the other way round

    @classmethod
    def of(
        cls, state: SessionState | None, keys: Collection[str] | None, *, has_references: bool
    ) -> "CarriedDocuments":
        """Derive them from a session's state.

        Args:
            state: the session; None: the request has none.
            keys: documents that the payload contains already; a mapping gives the labels that it
                shows for them, if any. None: all of the session's.
            has_references: location hints are on; otherwise `carried` is empty.
        """
        known = state.labels() if state else {}
        owners = state.owners() if state else {}
        if keys is None:
            carried, is_empty = known, not (state and state.turns)
            is_complete = not (state and state.has_forgotten)
        else:
            shown = keys if isinstance(keys, Mapping) else {}
            # Another branch of the session may have labelled a forgotten document in another way.
            carried = {key: shown.get(key) or known.get(key, "") for key in keys}
            carried, is_empty = {key: label for key, label in carried.items() if label}, not keys
            taken = {*carried.values()}
            known = {key: label for key, label in known.items() if label not in taken} | carried
            # A copy of a document may have a second label.
            owners = {**owners, **{label: key for key, label in known.items()}}
            is_complete = len(carried) == len(set(keys))
            if state is not None and not isinstance(keys, Mapping):
                is_complete = is_complete and not state.has_forgotten
        return cls(known, carried if has_references else {}, is_empty, is_complete, owners)


class SessionStore(Protocol):
    """Storage of session states. Calls never overlap: the Booster holds a lock.

    A store may drop a session at any time; the session's documents are then sent again. The caller
    may change the state that `get` returned; `put` saves the change.
    """

    def get(self, session_id: str) -> SessionState | None:
        """Return a session's state, which counts as use; None if it is unknown or has expired."""

    def put(self, state: SessionState) -> None:
        """Save a session's state, which counts as use."""

    def remove(self, session_id: str) -> bool:
        """Remove a session; return False if it is unknown."""

    def __len__(self) -> int: ...


class MemorySessions:
    """Sessions kept in this process, bounded by number and by time since the last use.

    Args:
        max_sessions: sessions kept; the least recently used are dropped.
        ttl_s: seconds after its last use until a session expires.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        *,
        max_sessions: int = 10_000,
        ttl_s: float = 86_400.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._states: BoundedMap[str, SessionState] = BoundedMap(
            max_entries=max_sessions, ttl_s=ttl_s, clock=clock
        )

    def __len__(self) -> int:
        return len(self._states)

    def get(self, session_id: str) -> SessionState | None:
        return self._states.get(session_id)

    def put(self, state: SessionState) -> None:
        self._states.put(state.id, state)

    def remove(self, session_id: str) -> bool:
        return self._states.pop(session_id) is not None


class StoredConversations:
    """The part of a Booster that looks after its stored conversations."""

    sessions: SessionStore
    _lock: RLock

    def turns(self, session_id: str) -> tuple[Turn, ...]:
        """Return a conversation's remembered turns, oldest first; empty if it is unknown."""
        with self._lock:
            state = self.sessions.get(session_id)
            return tuple(state.turns) if state else ()

    def rollback(self, context: Context) -> None:
        """Remove a turn that was not sent, and all later ones of its session.

        Otherwise a later turn would refer to documents that the model never received. Does nothing
        for a context without a session. Not needed if `history` is passed to `boost`.
        """
        if context.session is None:
            return
        with self._lock:
            state = self.sessions.get(context.session)
            if state is not None:
                state.rollback(context.turn)
                self.sessions.put(state)

    def forget(self, session_id: str) -> bool:
        """Remove a conversation; return False if it is unknown."""
        with self._lock:
            return self.sessions.remove(session_id)
