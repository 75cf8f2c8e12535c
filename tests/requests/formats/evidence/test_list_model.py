"""The documents at both ends of a list: certain by what stood beside them in other lists."""

import random

from ragboost.requests.formats.evidence.evidence import Evidence
from tests.requests.formats.evidence.evidence_worlds import (
    JOINS,
    TEMPLATES,
    paragraph,
    problem,
    sentence,
    write,
)


def test_a_last_document_that_a_new_one_followed_elsewhere_ends_where_it_did() -> None:
    """They all have four documents, so that the new one is no part of the template."""
    rng, evidence = random.Random(1), Evidence()
    documents = [(i, [paragraph(rng, 170) for _ in range(1 + i % 4)]) for i in range(10)]
    for chosen in ("3827", "9714", "0748", "3974", "8765", "2396"):
        listed = [documents[int(i)] for i in chosen]
        prompt = write(listed, JOINS["blank lines"], TEMPLATES["question behind"], sentence(rng))
        spans = evidence.cut(prompt.text, tenant="a", is_first_turn=True)
        assert problem(prompt, spans) == ""
    assert len(spans) == 4
