"""What was sent for messages is found by their links, bounded, and evicted from its ends."""

import json
from typing import Any

from ragboost.requests.history import History
from ragboost.requests.json_body import JsonBody, chain_links
from ragboost.requests.sent_history import (
    FORM_BYTES,
    UNCHANGED,
    HistoryDelta,
    ResentMessages,
    SentMessage,
)


def make(now: list[float] | None = None, **limits: Any) -> History:
    bounds = {"max_bytes": 10_000, "ttl_s": 100, **limits}
    return History(**bounds, clock=lambda: now[0] if now else 0.0)


def links_of(*messages: str) -> list[bytes]:
    return chain_links([message.encode() for message in messages])


def add(history: History, *messages: str, size: int = 10) -> None:
    """Let the last message be rewritten to so many bytes."""
    sent = SentMessage(b"x" * size, (), ())
    history.add(HistoryDelta(((links_of(*messages)[-1], sent),)))


def sizes_of(history: History, *messages: str) -> list[int]:
    known = history.known(links_of(*messages))
    return [len(form.sent.message) for forms in known.forms.values() for form in forms]


def test_what_was_sent_is_found_by_all_messages_before_it() -> None:
    history = make()
    add(history, "q1", size=1)
    add(history, "q1", "a1", "q2", size=2)
    assert sizes_of(history, "q1", "a1", "q2", "a2", "q3") == [1, 2]
    assert sizes_of(history, "q1", "a1", "other") == [1]
    for messages in (("q",), ("other", "a1", "q2"), ("q2", "a2", "q3"), ("a1", "q2")):
        assert sizes_of(history, *messages) == []


def test_messages_up_to_the_last_that_was_sent_before_are_known() -> None:
    history = make()
    add(history, "q1", "a1", "q2")
    assert history.known(links_of("q1", "a1", "q2", "a2", "q3")).num_known == 3
    assert history.known(links_of("q1", "a1")).num_known == 0


def test_the_last_turns_of_a_conversation_are_evicted_first() -> None:
    history = make(max_bytes=2 * (FORM_BYTES + 200))
    add(history, "q1", size=200)
    add(history, "q1", "a1", "q2", size=200)
    history.known(links_of("q1", "a1", "q2"))
    add(history, "other", size=200)
    assert len(sizes_of(history, "q1", "a1", "q2")) == 1
    assert history.known(links_of("q1", "a1", "q2")).num_known == 1


def test_a_conversation_in_use_is_found_however_many_others_begin() -> None:
    history = make(max_bytes=16 * (FORM_BYTES + 10))
    add(history, "q1")
    for number in range(100):
        add(history, f"other {number}")
        assert sizes_of(history, "q1", "a1", "q2")
    assert len(history) == 16


def test_bytes_are_bounded_over_all_conversations_and_within_one() -> None:
    history = make(max_bytes=1024 + FORM_BYTES)
    add(history, "a", size=600)
    add(history, "b", size=600)
    assert (sizes_of(history, "a"), history.num_bytes) == ([], 600 + FORM_BYTES)
    add(history, "c", size=2000)
    assert (len(history), history.num_bytes) == (0, 0)


def test_every_form_of_a_message_counts_and_the_same_form_once() -> None:
    history = make()
    for size in (60, 50, 60):
        add(history, "a", size=size)
    assert sizes_of(history, "a") == [50, 60]
    assert history.num_bytes == 110 + 2 * FORM_BYTES


def test_the_forms_of_a_message_are_bounded_and_the_newest_are_kept() -> None:
    history = make()
    for size in range(1, 21):
        add(history, "a", size=size)
    assert sizes_of(history, "a") == list(range(13, 21))
    assert history.num_bytes == sum(range(13, 21)) + 8 * FORM_BYTES


def test_what_was_sent_expires_after_its_last_use() -> None:
    now = [0.0]
    history = make(now)
    add(history, "a")
    for now[0] in (90.0, 180.0):
        assert sizes_of(history, "a")
    now[0] = 290.0
    assert not sizes_of(history, "a")
    assert (len(history), history.num_bytes) == (0, 0)


def test_a_link_depends_on_the_whole_history_before_it() -> None:
    one, two = chain_links([b"a", b"b", b"c"]), chain_links([b"A", b"b", b"c"])
    assert not set(one) & set(two)
    assert chain_links([b"a", b"b"]) == one[:2]
    assert chain_links([b"ab", b"c"])[-1] != chain_links([b"a", b"bc"])[-1]
    assert chain_links([b"a"], seed=b"documents") != chain_links([b"a"])


def test_what_is_sent_behind_a_message_in_a_new_form_is_a_branch_of_its_own() -> None:
    texts = ("q1", "a1", "q2", "a2", "q3")
    raw = json.dumps({"messages": [{"role": "user", "content": text} for text in texts]})
    body, links, history = JsonBody(raw.encode()), links_of(*texts), make()
    question, answer, other = (SentMessage(text, (), ()) for text in (b"Q1", b"A1", b"other"))
    history.add(HistoryDelta(((links[0], question), (links[1], answer)), parent=UNCHANGED))
    resent = ResentMessages(body, history.known(links), links=links, is_in_place=True)
    history.add(resent.with_last(HistoryDelta(((links[0], other),), parent=UNCHANGED)))

    again = ResentMessages(body, history.known(links), links=links, is_in_place=True)

    assert again.sent == {0: other, 1: answer}
