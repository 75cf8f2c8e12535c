"""Boost a turn of a conversation whose history the framework keeps.

The record of a turn is plain JSON beside the turn's message: a document can be referred to as long
as the message that carries it is in the history.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from ragboost.booster import Booster, SessionState, Turn
from ragboost.booster.context import Context
from ragboost.types import Document

Record = Mapping[str, Any]
"""`{"question", "documents": [[key, label, num_tokens], ...], "num_tokens"}`, JSON."""


class BoostedTurn(NamedTuple):
    context: Context
    record: dict[str, Any]


def boost_turn(
    booster: Booster,
    question: str,
    documents: Iterable[Document | None],
    *,
    behind: Sequence[tuple[str, Record | None]],
) -> BoostedTurn:
    """Boost the turn behind these messages, oldest first: their texts, each with the record of its
    turn if it carries documents. Documents that are None are skipped.
    """
    records = [record for _, record in behind if record is not None]
    turns = [_turn(number, record) for number, record in enumerate(records, 1)]
    state = SessionState("caller", turns=turns, next_turn=len(turns) + 1)
    context = booster.boost(
        question,
        [document for document in documents if document is not None],
        session=state,
        history=[key for turn in turns for key in turn.keys],
        prompt_prefix=_digest([text for text, _ in takewhile(_is_plain, behind)]),
    )
    last = state.turns[-1]
    record = {
        "question": question,
        "documents": list(map(list, zip(last.keys, last.labels, last.tokens, strict=True))),
        "num_tokens": last.num_tokens,
    }
    return BoostedTurn(context, record)


def _turn(number: int, record: Record) -> Turn:
    columns = zip(*record["documents"], strict=True)
    return Turn(number, number == 1, record["num_tokens"], *columns)


def _is_plain(message: tuple[str, Record | None]) -> bool:
    return message[1] is None


def _digest(texts: Sequence[str]) -> str:
    if not any(texts):
        return ""
    joined = "".join(f"{len(text)}:{text}" for text in texts)
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()[:16]
