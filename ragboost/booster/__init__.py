"""Order, de-duplicate and hint documents: the room where index, ordering, dedup and hints meet."""

from ragboost.booster.booster import Booster, Session
from ragboost.booster.residency import UsageTotals
from ragboost.booster.session_state import (
    CarriedDocuments,
    MemorySessions,
    SessionState,
    SessionStore,
    Turn,
)

__all__ = [
    "Booster",
    "CarriedDocuments",
    "MemorySessions",
    "Session",
    "SessionState",
    "SessionStore",
    "Turn",
    "UsageTotals",
]
