"""Text that differs before the documents: found, measured, and moved without losing any."""

import itertools
import json
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.config import Settings
from ragboost.formats import make_formats
from ragboost.formats.documents import DocumentPool
from ragboost.formats.evidence.evidence import DocumentSpan, Evidence
from ragboost.formats.messages import Messages
from ragboost.formats.unmarked import UnmarkedDocuments
from ragboost.rewriting.parsed_request import ParsedRequest, parse_request
from ragboost.rewriting.varying_piece import VaryingPiece, VaryingPieces, move_piece

RULES = "You answer questions of students. Be brief.\nNever guess.\n"
LABEL = "\nUse these documents:\n"
DOCUMENTS = "".join(f"<document>Text {i} tells at length of {i}.</document>\n" for i in range(3))
FORMATS = make_formats(Settings())


def prompt(piece: str, *, rules: str = RULES, documents: str = DOCUMENTS) -> str:
    return f"{rules}{piece}{LABEL}{documents}\nWhy?"


def parsed(content: str, *, system: str = "", model: str = "m", **fields: Any) -> ParsedRequest:
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": content})
    body = {"model": model, "messages": messages, **fields}
    return parse_request(json.dumps(body).encode(), (), formats=FORMATS)


def observe(contents: list[str], pieces: VaryingPieces | None = None) -> list[VaryingPiece | None]:
    pieces = pieces or VaryingPieces(max_messages=100)
    return [pieces.observe(parsed(content)) for content in contents]


def names(count: int) -> list[str]:
    return [f"The user is number {i}.\nToday is day {i % 7} of {i}.\n" for i in range(count)]


def test_a_piece_is_known_after_some_requests_and_measured() -> None:
    *_, last = observe([prompt(name) for name in names(40)])

    assert last is not None
    assert last.span is not None
    start, stop = last.span
    assert prompt(names(40)[-1])[start:stop].strip() == names(40)[-1].strip()
    assert last.num_bytes == stop - start
    assert last.share > 0.95
    assert "tokens differ before the documents in" in last.sentence(0.25)
    assert "ordering.move_varying" in last.sentence(0.25)


class Paragraphs(Evidence):
    """Knows all paragraphs that begin with "Text" to be documents."""

    def cut(
        self,
        text: str,
        *,
        tenant: str,
        is_first_turn: bool,
        marks: Sequence[int] = (),
        learns: bool = True,
    ) -> tuple[DocumentSpan, ...]:
        return tuple(
            [DocumentSpan(*match.span()) for match in re.finditer("^Text.*$", text, re.MULTILINE)]
        )


def test_nothing_varies_before_documents_that_were_found_by_evidence() -> None:
    """Where they begin is learnt, and the beginning of one may be taken for text before them."""
    config, pieces = Settings(), VaryingPieces(max_messages=100)
    unmarked = UnmarkedDocuments(config, evidence=Paragraphs())
    formats = (Messages(config, pool=DocumentPool(), unmarked=unmarked),)
    texts = [f"Text {i} tells of {i * i} at length and ends here. " * 4 for i in range(5)]
    for number, order in enumerate(itertools.permutations(texts, 3)):
        head = f"Rules of the house.\nThe user is number {number}.\nContext:\n"
        message = {"role": "user", "content": head + "\n\n".join([*order, "Why?"])}
        body = json.dumps({"model": "m", "messages": [message]}).encode()
        request = parse_request(body, (), formats=formats)
        assert request.found is not None
        assert request.found.frame == "evidence"
        assert pieces.observe(request) is None


def test_all_requests_of_one_application_have_one_head() -> None:
    found = observe([prompt(name) for name in names(60)])

    assert len({piece.head for piece in found[40:] if piece is not None}) == 1


@pytest.mark.parametrize(
    "piece",
    [
        lambda i: "",
        lambda i: "Today is Monday.\n",
        lambda i: f"Today is day {i // 40}.\n",  # all of a day share it
        lambda i: ["German.\n", "English.\n", "French.\n"][i % 3],
    ],
)
def test_text_that_many_requests_share_is_no_piece(piece: Any) -> None:
    assert not any(observe([prompt(piece(i)) for i in range(200)]))


def test_a_new_version_of_the_rules_is_no_piece() -> None:
    old = [prompt("", rules=RULES + "Old rule.\n") for _ in range(300)]
    new = [prompt("", rules=RULES + "New rule.\n") for _ in range(300)]

    assert not any(observe(old + new))


def test_a_piece_in_another_message_is_named_and_not_moved() -> None:
    pieces = VaryingPieces(max_messages=100)
    for name in names(40):
        request = parsed(DOCUMENTS + "\nWhy?", system=RULES + name)
        piece = pieces.observe(request)

    assert piece is not None
    assert piece.span is None
    assert "move them behind the documents" in piece.sentence(0.25)
    assert move_piece(request, piece) is None


def test_tenants_learn_apart() -> None:
    pieces = VaryingPieces(max_messages=100)
    for name in names(40):
        pieces.observe(parsed(prompt(name), model="a"))

    assert pieces.observe(parsed(prompt(names(41)[-1]), model="b")) is None
    assert [finding.tenant.model for finding in pieces.of_team("")] == ["a"]
    assert pieces.of_team("another") == []


def test_a_message_keeps_its_answer_when_it_is_sent_again() -> None:
    pieces = VaryingPieces(max_messages=100)
    early = [parsed(prompt(name)) for name in names(3)]
    assert [pieces.observe(request) for request in early] == [None] * 3
    observe([prompt(name) for name in names(60)[3:]], pieces)

    assert [pieces.observe(request) for request in early] == [None] * 3


def test_documents_above_the_messages_keep_their_answer_in_later_turns() -> None:
    pieces = VaryingPieces(max_messages=100)

    def turn(name: str, number: int) -> VaryingPiece | None:
        messages = [{"role": "user", "content": f"Why {at}?"} for at in range(number)]
        body = {"model": "m", "system": prompt(name), "messages": messages}
        raw = json.dumps(body).encode()
        return pieces.observe(parse_request(raw, (), formats=FORMATS, recognises=True))

    first, *others = [turn(name, 1) for name in names(40)]
    assert first is None
    assert others[-1] is not None
    assert turn(names(1)[0], 2) is None
    again = turn(names(40)[-1], 2)
    assert again is not None
    assert (again.span, again.is_resent) == (others[-1].span, True)


@pytest.mark.parametrize("name", ["prompt", "system"])
def test_what_was_moved_stays_in_place_where_it_is_sent_again_without_boosting(name: str) -> None:
    pieces = VaryingPieces(max_messages=100)

    def moves(text: str, question: str, *, boost: bool) -> bool:
        body = {"model": "m", name: text, "ragboost": {"options": {"boost": boost}}}
        if name == "system":
            body["messages"] = [{"role": "user", "content": question}]
        request = parse_request(json.dumps(body).encode(), (), formats=FORMATS)
        piece = pieces.observe(request)
        return piece is not None and move_piece(request, piece) is not None

    *_, last = [prompt(piece) for piece in names(40)]
    assert [moves(prompt(piece), "Why?", boost=True) for piece in names(40)][-1]
    assert moves(last, "Why?", boost=True)
    assert not moves(last, "Why?", boost=False)
    assert not moves(last, "And how?", boost=False), "another conversation"


def test_memory_is_bounded() -> None:
    pieces = VaryingPieces(max_messages=10)
    choose = random.Random(1)
    for number in range(3000):
        lines = "".join(f"{choose.random()}\n" for _ in range(30))
        pieces.observe(parsed(prompt(lines, rules=f"{number % 300}\n")))

    assert len(pieces._answers) <= 10
    assert len(pieces._beginnings) <= 16_384
    assert len(pieces._findings) <= 256


WORD = st.text("ab.\n é<", max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.lists(WORD, max_size=3), WORD, WORD, st.integers(0, 10**6))
def test_moving_loses_and_doubles_nothing(
    middle: list[str], before: str, after: str, seed: int
) -> None:
    pieces = VaryingPieces(max_messages=100)
    for number in range(40):
        varying = f"Number {seed + number}.\n{''.join(middle)}"
        request = parsed(f"Head.\n{before}{varying}\n{after}{DOCUMENTS}\nWhy?")
        piece = pieces.observe(request)
        raw = move_piece(request, piece) if piece is not None else None
        if raw is None or request.found is None:
            continue
        old = request.body.fields["messages"][0]["content"]
        new = json.loads(raw)["messages"][0]["content"]
        assert sorted(new.replace("\n", "")) == sorted(old.replace("\n", ""))
        assert piece is not None
        assert piece.span is not None
        assert old[slice(*piece.span)].strip("\n") in new[new.rindex("</document>") :]
    assert piece is not None, "found in the end"
