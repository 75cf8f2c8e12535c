"""Questions with documents and right answers, as an evaluation asks them."""

from collections.abc import Mapping
from dataclasses import dataclass

from ragboost.errors import RequestError
from ragboost.types import Document


@dataclass(frozen=True, slots=True)
class EvalQuestion:
    id: str  # unique in the file
    text: str
    documents: tuple[Document, ...]  # most relevant first; not empty
    # Right answers; the first one is the assistant's message in later turns.
    answers: tuple[str, ...]
    conversation: str | None = None  # its conversation; None: it stands alone


def text_of(row: Mapping[str, object], *names: str) -> str:
    """Return the first of these fields that is present; it must be a non-empty text."""
    value = next((row[name] for name in names if row.get(name) is not None), None)
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"{names[0]} must be a non-empty string", param=names[0])
    return value


def answers_of(value: object) -> tuple[str, ...]:
    """Return answers given as a text, a number or a list of them, without blank ones."""
    values = value if isinstance(value, list | tuple) else [value]
    answers = [
        str(entry).strip() for entry in values if entry is not None and not isinstance(entry, dict)
    ]
    if not any(answers):
        raise RequestError("the right answer is missing", param="answers")
    return tuple(dict.fromkeys(answer for answer in answers if answer))
