"""What each conversation was sent, turn by turn, and where that is remembered.

State is plain data: keys, labels and lengths, no texts. Does not know prompts, engines or HTTP.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ragboost.context import Context
from ragboost.types import DocumentLike

if TYPE_CHECKING:
    from ragboost.booster.booster import Booster


class SentDocument(NamedTuple):
    """A document that a turn carries in full, under this label."""

    key: str
    label: str
    num_tokens: int


class Turn(NamedTuple):
    """One request of a conversation.

    Attributes:
        number: from 1, never given twice in a session.
        is_leading: its documents stand at the front of the payload, no earlier turn before them.
        documents: those sent in full, in prompt order.
        num_tokens: length of documents and question.
    """

    number: int
    is_leading: bool
    documents: tuple[SentDocument, ...]
    num_tokens: int


@dataclass(slots=True)
class SessionState:
    """A conversation's turns, oldest first.

    Attributes:
        id: the caller's name for it.
        turns: those remembered; the oldest may have been forgotten.
        next_turn: number of the next turn.
        has_forgotten: turns were forgotten, so that not all labels given are known.
    """

    id: str
    turns: list[Turn] = field(default_factory=list)
    next_turn: int = 1
    has_forgotten: bool = False

    def labels(self) -> dict[str, str]:
        """Label by key of every document that the remembered turns carry."""
        return {sent.key: sent.label for turn in self.turns for sent in turn.documents}

    def front(self) -> tuple[SentDocument, ...]:
        """The documents at the front of the payload: those of the last leading turn."""
        for turn in reversed(self.turns):
            if turn.is_leading:
                return turn.documents
        return ()

    def tail_tokens(self) -> int:
        """Length of the turns behind `front`."""
        total = 0
        for turn in reversed(self.turns):
            if turn.is_leading:
                break
            total += turn.num_tokens
        return total

    def add(self, turn: Turn, *, max_documents: int) -> None:
        """Append a turn; while more documents are remembered than allowed, forget the oldest turn.

        The new turn itself is always kept.
        """
        self.turns.append(turn)
        self.next_turn = turn.number + 1
        total = sum(len(turn.documents) for turn in self.turns)
        while total > max_documents and len(self.turns) > 1:
            total -= len(self.turns.pop(0).documents)
            self.has_forgotten = True

    def rollback(self, number: int) -> None:
        """Forget turn `number` and all after it, which may refer to it."""
        self.turns = [turn for turn in self.turns if turn.number < number]


class SessionStore(Protocol):
    """Where sessions are kept. Calls come one at a time: the Booster holds a lock.

    A store may drop a session at any time: its documents are then sent again. `get` returns None
    for a session that is not there or has expired, and counts as use. What `get` returned may be
    changed by the caller; `put` makes the change last.
    """

    def get(self, session_id: str) -> SessionState | None:
        """The session's state."""

    def put(self, state: SessionState) -> None:
        """Keep a session's state, as just used."""

    def remove(self, session_id: str) -> bool:
        """Forget a session; False if it was not there."""

    def __len__(self) -> int: ...


class MemorySessions:
    """Sessions in this process, the least recently used and the expired ones dropped.

    Args:
        max_sessions: sessions kept.
        ttl_s: seconds after the last use until a session expires.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        *,
        max_sessions: int = 10_000,
        ttl_s: float = 86_400.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_sessions = max_sessions
        self.ttl_s = ttl_s
        self._clock = clock
        # By last use, oldest first.
        self._states: OrderedDict[str, tuple[float, SessionState]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def get(self, session_id: str) -> SessionState | None:
        """The session's state, or None if it is unknown or has expired."""
        self._expire()
        entry = self._states.get(session_id)
        if entry is None:
            return None
        self.put(entry[1])
        return entry[1]

    def put(self, state: SessionState) -> None:
        """Keep a session's state, as just used."""
        self._states[state.id] = (self._clock(), state)
        self._states.move_to_end(state.id)
        while len(self._states) > self.max_sessions:
            self._states.popitem(last=False)

    def remove(self, session_id: str) -> bool:
        """Forget a session; False if it was not there."""
        return self._states.pop(session_id, None) is not None

    def _expire(self) -> None:
        limit = self._clock() - self.ttl_s
        while self._states and next(iter(self._states.values()))[0] < limit:
            self._states.popitem(last=False)


class Session:
    """One conversation of a Booster; made by `Booster.session`.

    The caller sends the earlier turns again in each prompt, as chat clients do: location hints
    point at them. A turn that was not sent after all is taken back with `rollback`.
    """

    def __init__(self, booster: "Booster", session_id: str) -> None:
        self.id = session_id
        self._booster = booster

    def __repr__(self) -> str:
        return f"{self._booster!r}.session({self.id!r})"

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns remembered, oldest first; empty before the first one and after expiry."""
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
        """Take back a turn that was not sent, and all after it; see `Booster.rollback`."""
        self._booster.rollback(context)

    def forget(self) -> None:
        """Forget the conversation: the next turn is a first one."""
        self._booster.forget(self.id)
