"""Lines are known again in another text, although numbers in them have changed."""

import random

import pytest

from ragboost.requests.formats.evidence.evidence import Evidence
from ragboost.requests.formats.evidence.line_digests import read_lines


def keys(text: str) -> list[int]:
    return [line.key for line in read_lines(text)]


@pytest.mark.parametrize(
    "document",
    [
        "Title: Rent\nScore: {}\nText: The rent is due on the first.",
        "Relevance: {}\nThe rent is due on the first.",
        "## Rent\n\n**Score:** {}\n\nThe rent is due on the first.",
        "### Rent (score: {})\nThe rent is due on the first.",
        "[2] (score={})\nThe rent is due on the first.",
        "The rent is due on the first.\n- Distance: {}",
    ],
)
def test_a_document_is_known_again_with_another_score(document: str) -> None:
    lines, first = keys(document.format("0.87")), "Pets are allowed.\n\n"
    assert keys(first + document.format("0.9134"))[1:] == lines
    assert set(keys(document.replace("Rent", "Pets").replace("rent", "pet"))).isdisjoint(lines[:1])


@pytest.mark.parametrize(("one", "other"), [("Score: 1", "Score: 2"), ("at 0.87 m", "at 0.91 m")])
def test_other_numbers_tell_lines_apart(one: str, other: str) -> None:
    assert keys(f"The rent is due.\n{one}")[1] != keys(f"The rent is due.\n{other}")[1]


def test_a_score_never_moves_with_the_document_above_its_own() -> None:
    """Not even where no blank line tells which one that is."""
    for seed in range(12, 16):
        rng, evidence = random.Random(seed), Evidence()
        documents = [" ".join(f"word{rng.randint(0, 9**5)}" for _ in range(30)) for _ in range(8)]
        num, tail = rng.choice((0, 3, 4)), rng.choice(("", "\n\nQuestion: {}?"))
        for _ in range(20):
            chosen = rng.sample(documents, num or rng.randint(3, 5))
            listed = [f"Score: 0.{rng.randint(100, 999)}\n{document}" for document in chosen]
            text = "\n".join(["Context:", *listed]) + tail.format(rng.random())
            spans = evidence.cut(text, tenant="a", is_first_turn=True)
            assert all(text.startswith("Score", span.start) for span in spans)
