"""Questions about numbered documents that the product writes in another order, with several notes.

Knows no model. The product writes no note: it maps the numbers in the answer.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.language.cases import LanguageCase
from benchmarks.language.rewritten import Body, rewrite
from ragboost.types import Document

PLAIN, PRODUCT, BEFORE = "plain", "product", "before"
_SYSTEM = (
    "Answer from the documents and cite the document, as in these examples:\n"
    "The tower is 52 metres high (Document 3).\n"
    "The key of the shed is green (Document 1)."
)
_LABEL = re.compile(r"^Document (\d+): ", re.MULTILINE)
_END, _QUESTION = "\n</documents>", "\n\nQuestion: "


@dataclass(frozen=True, slots=True)
class CitationCase:
    """A question, the client's number of its document, and its requests by arm."""

    answers: tuple[str, ...]
    number: int
    place: int  # where the product writes the document, from 1
    requests: Mapping[str, Body]


class Writing(NamedTuple):
    """Another way to write a reordered request than the product's; `order` holds the client's place
    of the document at each place, from 0."""

    note: Callable[[Sequence[int]], str]
    label: Callable[[int, Sequence[int]], str] | None = None  # of a place; None: its number


def _noted(order: Sequence[int]) -> str:
    pairs = ", ".join(f"{at} is {i + 1}" for at, i in enumerate(order, 1))
    return f"Cite documents by their numbers: {pairs}."


WRITINGS: Mapping[str, Writing] = {
    "note, 1 is 3": Writing(_noted),
    "client's numbers": Writing(lambda order: "", lambda at, order: str(order[at] + 1)),
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
            _written(body, WRITINGS[arm], order)
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


def _written(body: Body, writing: Writing, order: Sequence[int]) -> Body:
    """Replace the labels of the product's request, and add a note."""
    system, user = body["messages"]
    documents, _, question = user["content"].partition(_END)
    if (label := writing.label) is not None:
        documents = _LABEL.sub(lambda m: f"Document {label(int(m[1]) - 1, order)}: ", documents)
    note = "".join(f"\n\n{text}" for text in [writing.note(order)] if text)
    return {"messages": [system, {**user, "content": f"{documents}{_END}{note}{question}"}]}
