"""The default templates of applications: found at once, or after some requests."""

import random
from typing import Any

import pytest

from ragboost.config import Settings
from ragboost.requests.formats import (
    FoundDocuments,
    LeftAloneError,
    UnmarkedDocumentsError,
    find_format,
    make_formats,
)
from tests.requests.formats.frames.applications import (
    APPLICATIONS,
    TOOLS,
    TOOLS_LEFT_ALONE,
    Application,
)
from tests.requests.formats.frames.texts import LEASE, NOISE, PETS, RENT
from tests.requests.formats.rewriting import context_of, find, reorder

CORPUS = [
    f"Paragraph {name} of the house rules. {first} {second}\n\nIn short: {name} is what counts."
    for name, first, second in zip(
        ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"),
        (LEASE, RENT, PETS, NOISE, RENT, LEASE, NOISE, PETS, LEASE, RENT),
        (RENT, PETS, NOISE, LEASE, NOISE, PETS, LEASE, RENT, NOISE, LEASE),
        strict=True,
    )
]
AT_ONCE = [each for each in APPLICATIONS if not each.evidence]
LATER = [each for each in APPLICATIONS if each.evidence]


def body_of(application: Application, documents: list[str], question: str) -> dict[str, Any]:
    content = application.write(documents, question)
    messages = [{"role": application.role, "content": content}]
    if application.role == "system":
        messages.append({"role": "user", "content": question})
    return {"model": "m", "messages": messages}


def words(text: str) -> list[str]:
    """Return the words, whatever closes a block behind them."""
    return text.removesuffix("```").split()


@pytest.mark.parametrize("row", AT_ONCE, ids=[each.name for each in AT_ONCE])
def test_its_documents_are_found_at_once_and_move_whole(row: Application) -> None:
    body = body_of(row, CORPUS[:4], "Who signed the lease?")
    hit = find_format(make_formats(Settings()), body)
    assert hit is not None
    assert len(hit[1].documents) == 4
    moved = reorder(body, [2, 0, 3, 1], Settings(hints={"order": False}))
    expected = body_of(row, [CORPUS[i] for i in (2, 0, 3, 1)], "Who signed the lease?")
    assert moved["messages"][0]["content"] == expected["messages"][0]["content"]


@pytest.mark.parametrize("row", LATER, ids=[each.name for each in LATER])
def test_it_is_named_at_first(row: Application) -> None:
    body = body_of(row, CORPUS[:4], "Who signed the lease?")
    with pytest.raises(UnmarkedDocumentsError):
        find_format(make_formats(Settings()), body)


@pytest.mark.parametrize("row", LATER, ids=[each.name for each in LATER])
def test_its_documents_are_found_when_they_have_come_back(row: Application) -> None:
    first = sorted(first_request_found(row, seed) for seed in range(5))
    assert first[2] <= 7
    assert first[-1] <= 12


def first_request_found(row: Application, seed: int) -> int:
    """Send requests with four of ten documents until all four are found; then they stay found."""
    formats, rng = make_formats(Settings(), learns=True), random.Random(seed)
    first = 0
    for number in range(1, 13):
        documents = rng.sample(CORPUS, 4)
        found = _found(formats, body_of(row, documents, f"Question {rng.random()} of the house?"))
        if found is None or len(found.documents) < 4:
            assert not first
            continue
        first = first or number
        assert found.numbering is None or not found.numbering.stays, "they may be ordered"
        for text, document in zip(documents, found.documents, strict=True):
            assert words(document.text)[-len(words(text)) :] == words(text)
    return first or 13


def _found(formats: Any, body: dict[str, Any]) -> FoundDocuments | None:
    try:
        hit = find_format(formats, body)
    except LeftAloneError:
        return None
    assert hit is not None
    shape, found = hit
    same = shape.replace(body, found, context_of(found, range(len(found.documents))))
    assert same == body
    return found


def in_tools(row: Application) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Who signed the lease?"}]
    for number, documents in enumerate((CORPUS[:3], CORPUS[2:5])):
        messages.append({"role": "assistant", "content": "", "tool_calls": []})
        content = row.write(documents, "")
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": content})
    return {"model": "m", "messages": messages}


@pytest.mark.parametrize("row", TOOLS, ids=[each.name for each in TOOLS])
def test_a_tools_later_results_refer_to_earlier_ones(row: Application) -> None:
    sent = reorder(in_tools(row))["messages"][-1]["content"]
    assert sent.count("Please refer to the document") == 1
    assert "gamma is what counts" not in sent
    for name in ("delta", "epsilon"):
        assert sent.count(f"{name} is what counts") == 1


@pytest.mark.parametrize("row", TOOLS_LEFT_ALONE, ids=[each.name for each in TOOLS_LEFT_ALONE])
def test_other_results_of_tools_stay_as_they_are(row: Application) -> None:
    assert find(in_tools(row)) is None
