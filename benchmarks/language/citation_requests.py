"""Questions about numbered documents that the product writes in another order, with several notes.

Knows no model. The note of an arm stands where the product writes its own.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.language.cases import LanguageCase
from benchmarks.language.rewritten import Body, rewrite
from ragboost.types import Document

PLAIN, PRODUCT, BARE, BEFORE = "plain", "product", "no note", "before"
BEHIND = " behind the question"
_SYSTEM = (
    "Answer from the documents and cite the document, as in these examples:\n"
    "The tower is 52 metres high (Document 3).\n"
    "The key of the shed is green (Document 1)."
)
_END, _QUESTION = "\n</documents>", "\n\nQuestion: "


@dataclass(frozen=True, slots=True)
class CitationCase:
    """A question, the client's number of its document, and its requests by arm."""

    answers: tuple[str, ...]
    number: int
    place: int  # where the product writes the document, from 1
    requests: Mapping[str, Body]


def _pairs(order: Sequence[int], pair: str, *, all_places: bool = False) -> str:
    """Join the client's number of each place; `order` holds it from 0."""
    places = [(at + 1, i + 1) for at, i in enumerate(order) if all_places or at != i]
    return ", ".join(pair.format(place=place, number=number) for place, number in places)


def _sequence(order: Sequence[int]) -> str:
    return ", ".join(str(i + 1) for i in order)


NOTES: Mapping[str, Callable[[Sequence[int]], str]] = {
    "1 is 3": lambda o: f"Cite documents by their numbers: {_pairs(o, '{place} is {number}')}.",
    "original, 1 is 3": lambda o: f"Cite the original numbers: {_pairs(o, '{place} is {number}')}.",
    "[1] is [3]": lambda o: f"Cite the original numbers: {_pairs(o, '[{place}] is [{number}]')}.",
    "1 -> 3": lambda o: f"Cite the original numbers: {_pairs(o, '{place} -> {number}')}.",
    "Document 1 is Document 3": lambda o: (
        f"Cite the original numbers: {_pairs(o, 'Document {place} is Document {number}')}."
    ),
    "cite 1 as 3": lambda o: f"Cite document {_pairs(o, '{place} as {number}')}.",
    "sequence": lambda o: f"Original numbers of the documents, in the order shown: {_sequence(o)}.",
    "cite in sequence": lambda o: f"Cite these documents, in the order shown, as {_sequence(o)}.",
}


def write_cases(
    cases: Sequence[LanguageCase], arms: Sequence[str], *, before: Path | None = None
) -> list[CitationCase]:
    """Return the requests of each case in each arm; each document stands at another place than the
    client's.

    Args:
        before: checkout whose product writes the arm `BEFORE`.
    """
    orders = [_derangement(case) for case in cases]
    bodies = [_body(case.question, case.documents) for case in cases]
    cached = [
        _body(case.question, [case.documents[i] for i in order])
        for case, order in zip(cases, orders, strict=True)
    ]
    pairs = list(zip(cached, bodies, strict=True))
    written = {PLAIN: bodies, PRODUCT: rewrite(pairs)}
    if before is not None:
        written[BEFORE] = rewrite(pairs, checkout=before)
    for arm in set(arms) - set(written):
        written[arm] = [
            _with_note(body, arm, order)
            for body, order in zip(written[PRODUCT], orders, strict=True)
        ]
    return [
        _case(case, order, {arm: written[arm][at] for arm in arms})
        for at, (case, order) in enumerate(zip(cases, orders, strict=True))
    ]


def _case(case: LanguageCase, order: Sequence[int], requests: Mapping[str, Body]) -> CitationCase:
    holder = next(i for i, d in enumerate(case.documents) if case.answers[0] in d.text)
    return CitationCase(case.answers, holder + 1, order.index(holder) + 1, requests)


def _derangement(case: LanguageCase) -> list[int]:
    rng, order = random.Random(case.question), list(range(len(case.documents)))
    while any(at == i for at, i in enumerate(order)):
        rng.shuffle(order)
    return order


def _body(question: str, documents: Sequence[Document]) -> Body:
    texts = "\n\n".join(f"Document {at}: {d.text}" for at, d in enumerate(documents, 1))
    user = f"<documents>\n{texts}{_END}{_QUESTION}{question}"
    return {"messages": [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": user}]}


def _with_note(body: Body, arm: str, order: Sequence[int]) -> Body:
    """Put an arm's note in place of the product's."""
    system, user = body["messages"]
    documents, end, behind = user["content"].partition(_END)
    note, mark, question = behind.rpartition(_QUESTION)
    assert note.strip(), f"no note of the product in {user['content']!r}"
    new = "" if arm == BARE else f"\n\n{NOTES[arm.removesuffix(BEHIND)](order)}"
    behind = f"{mark}{question}{new}" if arm.endswith(BEHIND) else f"{new}{mark}{question}"
    return {"messages": [system, {**user, "content": documents + end + behind}]}
