"""Read and undo the turns of a Booster's conversations."""

from threading import RLock

from ragboost.booster.session_state import SessionStore, Turn
from ragboost.context import Context


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
