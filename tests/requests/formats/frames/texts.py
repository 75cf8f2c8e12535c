"""Documents, and frames around them, for tests of what a scan finds."""

from collections.abc import Callable, Sequence

from ragboost.config import Settings
from ragboost.requests.formats.frames import Scan, scan
from ragboost.requests.formats.instructions.questions import Question

LEASE = "The lease was signed by Ada in March, before the new owner of the house had moved in."
RENT = "Rent is due on the first of the month, by transfer, and a late one costs ten euros more."
PETS = "Pets are allowed if the neighbours agree in writing, and dogs have to be on a leash."
NOISE = "Between ten at night and six in the morning no music may be heard outside of a flat."
DOCUMENTS = (LEASE, RENT, PETS, NOISE)

PLAIN = Settings(hints={"order": False})

Write = Callable[[Sequence[str]], str]


def elements(tag: str) -> Write:
    return lambda documents: "\n".join(f"<{tag}>{text}</{tag}>" for text in documents)


def numbered(label: str, *, separator: str = "\n\n", first: int = 1) -> Write:
    """Write documents under a label with a hole for the number."""
    return lambda documents: separator.join(
        f"{label.format(number)} {text}" for number, text in enumerate(documents, first)
    )


def prompt(listed: str) -> str:
    return f"Answer from what follows.\n\n{listed}\n\nQuestion: who signed the lease?"


def scan_prompt(text: str) -> Scan:
    """Scan a user's message that stands beside no other."""
    return scan(text, question=Question.ANNOUNCED)


def texts_of(result: Scan) -> list[list[str | None]]:
    """Return the texts of the documents of each list."""
    return [[block.text for block in group.blocks] for group in result.groups]
