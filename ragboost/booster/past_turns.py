"""What a session was sent before, and the turn that is added to it.

Knows sessions and labels. Does not know the context index or request bodies.
"""

from collections.abc import Collection, Sequence

from ragboost.booster.compose import CarriedDocuments, Composed
from ragboost.booster.session import SentDocument, SessionState, Turn
from ragboost.config import Settings


def read_history(
    state: SessionState | None, keys: Collection[str] | None, *, settings: Settings
) -> CarriedDocuments:
    """What a payload may refer to.

    Args:
        state: of the session; None: it has no session.
        keys: of the documents that stand in the payload already; None: all that were sent.
        settings: whether earlier documents may be referred to at all.
    """
    known = state.labels() if state else {}
    if keys is None:
        carried, is_empty = known, not (state and state.turns)
        is_complete = not (state and state.has_forgotten)
    else:
        carried, is_empty = {key: known[key] for key in keys if key in known}, not keys
        is_complete = len(carried) == len(set(keys))
    if not (settings.dedup.enabled and settings.hints.location):
        carried = {}
    return CarriedDocuments(known, carried, is_empty, is_complete)


def add_turn(
    state: SessionState,
    composed: Composed,
    *,
    tokens: Sequence[int],
    query_tokens: int,
    is_leading: bool,
    max_documents: int,
) -> int:
    """Add a turn to its session; returns its number.

    Args:
        state: of the session.
        composed: what the turn carries.
        tokens: length of each of its documents.
        query_tokens: of its question.
        is_leading: its documents stand at the front of the conversation.
        max_documents: remembered per session.
    """
    sent = zip(composed.documents, composed.labels, tokens, strict=True)
    turn = Turn(
        number=state.next_turn,
        is_leading=is_leading,
        documents=tuple(SentDocument(d.key, label, length) for d, label, length in sent),
        num_tokens=sum(tokens) + query_tokens,
    )
    state.add(turn, max_documents=max_documents)
    return turn.number
