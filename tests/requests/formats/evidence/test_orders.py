"""What evidence would find, where its order is asked for or is its content."""

import random

from ragboost.requests.formats.evidence.evidence import Evidence
from tests.requests.formats.evidence.evidence_worlds import paragraph, write
from tests.requests.formats.evidence.test_evidence import (
    BLANK_LINES,
    QUESTION_BEHIND,
    cut,
    prompts,
)


def test_a_question_about_places_leaves_the_documents_in_place() -> None:
    evidence, *texts = Evidence(), *[prompt.text for prompt in prompts(1)]
    for text in texts[:-1]:
        cut(evidence, text)
    head, _, _ = texts[-1].rpartition("Question: ")
    assert not cut(evidence, f"{head}Question: What does the second document say of rent?")
    assert cut(evidence, f"{head}Question: What does the lease say of rent?")


def test_texts_that_follow_each_other_stay_in_a_known_template() -> None:
    evidence, rng = Evidence(), random.Random(4)
    texts = [(n, [f"Step {n}. {paragraph(rng, 170)}"]) for n in range(1, 9)]

    def is_cut(*places: int) -> bool:
        listed = [texts[place] for place in places]
        return bool(cut(evidence, write(listed, BLANK_LINES, QUESTION_BEHIND, "Who?").text))

    for _ in range(16):
        is_cut(*rng.sample(range(8), 4))
    assert is_cut(5, 2, 7, 1)
    assert not is_cut(2, 3, 4, 5)
