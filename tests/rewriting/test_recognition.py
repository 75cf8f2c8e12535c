"""Histories without a session id: claimed by their documents, bounded, evicted from their ends."""

import json
from typing import Any, NamedTuple

from ragboost.config import SessionSettings
from ragboost.rewriting.json_body import JsonBody, Link, chain_links
from ragboost.rewriting.recognition import UNCHANGED, Histories
from ragboost.rewriting.sent_history import Conversation, HistoryDelta, SentMessage


def make(**limits: Any) -> Histories:
    now = limits.pop("now", [0.0])
    limits = {"max_sessions": 100, "max_bytes": 10**6, "ttl_s": 100.0, **limits}
    return Histories(SessionSettings(**limits), clock=lambda: now[0])


class Claim(NamedTuple):
    """What recognition reads of a `ParsedRequest`."""

    body: JsonBody
    links: list[Link]
    shape_beside: str = ""
    keys_beside: tuple[str, ...] = ()
    is_boost_wanted: bool = True
    scope: bytes = b""
    opening: int = 0
    question_link: Link = b""


def claim(*texts: str, documents: str = "d", shape: str = "ragboost_object") -> Any:
    """A letter is a document."""
    body = JsonBody(json.dumps({"messages": texts}).encode())
    links = chain_links(body.message_digests)
    made = Claim(body, links, shape, tuple(documents))
    return made._replace(question_link=links[-1] if shape else b"")


def turn(
    histories: Histories,
    *texts: str,
    documents: str = "d",
    shape: str = "ragboost_object",
    size: int = 10,
    is_boosted: bool = True,
) -> bytes:
    made = claim(*texts, documents=documents, shape=shape)
    text = b"x" * size + texts[-1].encode()
    sent = SentMessage(text, tuple(documents), tuple(documents), is_boosted)
    delta = HistoryDelta(((made.links[-1], sent),))
    return histories.add(made, histories.match(made), delta)


def sent_of(match: Conversation) -> list[SentMessage]:
    return [form.sent for forms in match.forms.values() for form in forms]


def texts_of(match: Conversation) -> list[str]:
    return [sent.message.decode().lstrip("x") for sent in sent_of(match)]


def test_a_history_is_found_by_its_longest_known_part() -> None:
    histories = make()
    turn(histories, "q1")
    second = turn(histories, "q1", "a1", "q2")
    match = histories.match(claim("q1", "a1", "q2", "a2", "q3"))
    assert match.digest == second
    assert texts_of(match) == ["q1", "q2"]
    assert texts_of(histories.match(claim("q1", "a1", "other"))) == ["q1"]
    for texts in (("q",), ("other", "a1", "q2"), ("q2", "a2", "q3"), ("a1", "q2", "a2", "q3")):
        assert histories.match(claim(*texts)).digest == UNCHANGED


def test_only_a_request_with_all_documents_of_a_history_finds_it() -> None:
    histories = make()
    turn(histories, "q1", documents="ab")
    turn(histories, "q1", "a1", "q2", documents="abc")
    for documents, expected in (("", []), ("a", []), ("ab", ["q1"]), ("dcba", ["q1", "q2"])):
        match = histories.match(claim("q1", "a1", "q2", "a2", "q3", documents=documents))
        assert texts_of(match) == expected


def test_the_same_question_again_needs_the_same_documents_in_the_same_order() -> None:
    histories = make()
    turn(histories, "q1", documents="ab")
    for documents in ("ba", "abc", "a"):
        assert histories.match(claim("q1", documents=documents)).digest == UNCHANGED
    again = claim("q1", documents="ab")
    assert texts_of(histories.match(again)) == ["q1"]
    assert histories.match(again._replace(is_boost_wanted=False)).digest == UNCHANGED


def test_of_two_conversations_with_the_same_words_each_keeps_its_list_of_documents() -> None:
    histories = make()
    turn(histories, "q1", documents="ab")
    turn(histories, "q1", documents="b")  # the newest, and contained in the other's next request
    match = histories.match(claim("q1", "a1", "q2", documents="abc"))
    assert [sent.documents for sent in sent_of(match)] == [("a", "b")]


def test_the_option_tells_equal_conversations_apart() -> None:
    histories = make()
    for is_boosted in (False, True):
        turn(histories, "q1", is_boosted=is_boosted)
    again = claim("q1", "a1", "q2")._replace(is_boost_wanted=False)
    assert [sent.is_boosted for sent in sent_of(histories.match(again))] == [False]


def test_more_rewritten_messages_do_not_outweigh_a_newer_branch() -> None:
    histories = make()
    first = claim("q1")
    histories.add_unchanged(first)
    turn(histories, "q1", "a1", "q2", documents="ab")  # q1 had no documents
    turn(histories, "q1", documents="b")
    turn(histories, "q1", "a1", "q2", documents="b")
    match = histories.match(claim("q1", "a1", "q2", "a2", "q3", documents="abc"))
    assert [sent.documents for sent in sent_of(match)] == [("a", "b")]


def test_a_first_message_that_was_sent_as_it_came_stays_so() -> None:
    histories = make()
    turn(histories, "hi", documents="d")
    histories.add_unchanged(claim("hi"))
    assert texts_of(histories.match(claim("hi", "hello", "q2", documents="ed"))) == []
    assert texts_of(histories.match(claim("hi", documents="d"))) == ["hi"]  # the same question
    turn(histories, "hi", documents="d")  # newer
    assert texts_of(histories.match(claim("hi", "hello", "q2", documents="ed"))) == ["hi"]


def test_anothers_plain_question_takes_no_history_from_a_list_of_documents_that_continues_it() -> (
    None
):
    histories = make()
    turn(histories, "hi", documents="ab")
    histories.add_unchanged(claim("hi"))
    assert texts_of(histories.match(claim("hi", "hello", "q2", documents="abc"))) == ["hi"]


def test_a_later_message_that_was_sent_as_it_came_keeps_its_history_so() -> None:
    histories = make()
    turn(histories, "hi", documents="d")
    histories.add_unchanged(claim("hi"))
    histories.add_unchanged(claim("hi", "hello", "q2"))
    turn(histories, "hi", documents="d")  # another one's, newer
    later = claim("hi", "hello", "q2", "a2", "q3", documents="de")
    assert texts_of(histories.match(later)) == []
    assert texts_of(histories.match(claim("hi", "hello", "other", documents="de"))) == ["hi"]


def test_a_client_that_adds_to_the_front_of_its_list_keeps_its_documents() -> None:
    histories = make()
    turn(histories, "q1", documents="bc")
    turn(histories, "q1", documents="ca")  # the newest, and contained in the other's next request
    match = histories.match(claim("q1", "a1", "q2", documents="abc"))
    assert [sent.documents for sent in sent_of(match)] == [("b", "c")]


def test_a_request_that_is_repeated_a_thousand_times_is_one_message() -> None:
    histories = make(max_sessions=2000)
    for shape in ("", "documents_field"):
        for _ in range(1000):
            turn(histories, "q1", shape=shape)
    assert len(histories) == 2
    assert len(histories.match(claim("q1", "a1", "q2")).forms) == 1


def test_an_unboosted_message_is_resent_but_does_not_answer_the_question_again() -> None:
    histories = make()
    turn(histories, "q1", is_boosted=False)
    assert texts_of(histories.match(claim("q1"))) == []
    assert texts_of(histories.match(claim("q1", "a1", "q2"))) == ["q1"]


def test_documents_in_another_shape_find_nothing() -> None:
    histories = make()
    turn(histories, "q1", shape="documents_field")
    assert texts_of(histories.match(claim("q1", "a1", "q2"))) == []
    turn(histories, "p1", shape="")  # in the messages
    assert texts_of(histories.match(claim("p1", "a1", "q2"))) == ["p1"]


def test_equal_histories_with_other_documents_are_told_apart() -> None:
    histories = make()
    for documents in ("ab", "c", "d"):
        turn(histories, "q1", documents=documents)
        turn(histories, "q1", "a1", "q2", documents=documents + "x")
    for documents in ("ab", "c", "d"):
        match = histories.match(claim("q1", "a1", "q2", "a2", "q3", documents=documents + "xy"))
        assert [sent.documents for sent in sent_of(match)] == [
            tuple(documents),
            tuple(documents + "x"),
        ]


def test_the_rewritings_of_one_question_are_bounded() -> None:
    histories = make()
    for i in range(100):
        turn(histories, "q1", documents=chr(1000 + i))
    found = [
        bool(texts_of(histories.match(claim("q1", "a", "q2", documents=chr(1000 + i)))))
        for i in range(100)
    ]
    assert found == [False] * 36 + [True] * 64


def test_the_last_turns_of_a_conversation_are_evicted_first() -> None:
    histories = make(max_sessions=2)
    turn(histories, "q1")
    turn(histories, "q1", "a1", "q2")
    turn(histories, "other")
    assert texts_of(histories.match(claim("q1", "a1", "q2", "a2", "q3"))) == ["q1"]
    assert len(histories) == 2


def test_a_conversation_in_use_is_found_however_many_others_begin() -> None:
    histories = make(max_sessions=3)
    turn(histories, "q1")
    for i in range(10):
        turn(histories, f"other {i}")
        assert texts_of(histories.match(claim("q1", "a1", "q2"))) == ["q1"]


def test_bytes_are_bounded() -> None:
    histories = make(max_bytes=3000)
    for i in range(5):
        turn(histories, f"q{i}", size=1000)
    assert len(histories) == 2
    assert histories.num_bytes <= 3000


def test_histories_expire() -> None:
    now = [0.0]
    histories = make(now=now)
    turn(histories, "q1")
    now[0] = 101.0
    assert histories.match(claim("q1", "a1", "q2")).digest == UNCHANGED
    assert (len(histories), histories.num_bytes) == (0, 0)


def test_an_unchanged_first_message_is_hashed_only_where_its_own_bytes_were_rewritten() -> None:
    histories = make()
    turn(histories, "a")

    foreign, alike = claim("s", "b"), claim("a")
    del foreign.body.message_digests
    histories.add_unchanged(foreign)
    assert "message_digests" not in vars(foreign.body)

    histories.add_unchanged(alike)
    assert not histories.match(claim("a", "b", documents="ed")).digest
