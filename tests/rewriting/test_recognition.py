"""Histories without a session id: bounded, and evicted from their ends."""

from typing import Any

from ragboost.config import SessionSettings
from ragboost.rewriting.message_chain import history_links
from ragboost.rewriting.recognition import UNCHANGED, Histories
from ragboost.rewriting.sent_history import HistoryDelta, SentMessage


def make(**limits: Any) -> Histories:
    now = limits.pop("now", [0.0])
    limits = {"max_sessions": 100, "max_bytes": 10**6, "ttl_s": 100.0, **limits}
    return Histories(SessionSettings(**limits), clock=lambda: now[0])


def links(*texts: str, scope: bytes = b"") -> list[bytes]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return history_links(messages, [text.encode() for text in texts], scope=scope)


def turn(histories: Histories, *texts: str, answer: str = "a", size: int = 10) -> bytes:
    match = histories.match(links(*texts), b"documents")
    sent = SentMessage(b"x" * size + texts[-1].encode(), (), ())
    digest = histories.add(match, HistoryDelta(((match.links[-1], sent),)))
    histories.add_answers(match.links[-1], digest, [{"content": answer}])
    return digest


def test_a_history_is_found_by_its_longest_known_part() -> None:
    histories = make()
    turn(histories, "q1", answer="a1")
    second = turn(histories, "q1", "a1", "q2", answer="a2")
    match = histories.match(links("q1", "a1", "q2", "a2", "q3"))
    assert match.digest == second
    assert len(match.conversation.sent) == 2
    assert len(histories.match(links("q1", "a1", "other")).conversation.sent) == 1
    for texts in (("q1",), ("q1", "other", "q2"), ("q1", "a1 ", "q2", "a2", "q3")):
        found = histories.match(links(*texts))
        assert (found.digest == UNCHANGED) is (texts[1:2] != ("a1 ",))
    assert histories.match(links("q1", "a1", "q2", scope=b"other")).digest == UNCHANGED


def test_the_last_turns_of_a_conversation_are_evicted_first() -> None:
    histories = make(max_sessions=2)
    turn(histories, "q1", answer="a1")
    turn(histories, "q1", "a1", "q2", answer="a2")
    turn(histories, "other", answer="a")
    match = histories.match(links("q1", "a1", "q2", "a2", "q3"))
    assert len(match.conversation.sent) == 1
    assert len(histories) == 2


def test_bytes_are_bounded() -> None:
    histories = make(max_bytes=3000)
    for i in range(5):
        turn(histories, f"q{i}", size=1000)
    assert len(histories) == 2
    assert histories.num_bytes <= 3000


def test_histories_expire() -> None:
    now = [0.0]
    histories = make(now=now)
    turn(histories, "q1", answer="a1")
    now[0] = 101.0
    assert histories.match(links("q1", "a1", "q2")).digest == UNCHANGED
    assert (len(histories), histories.num_bytes) == (0, 0)


def test_links_are_bounded() -> None:
    histories = make(max_sessions=1)
    for i in range(40):
        plain = histories.match(links(f"q{i}"))
        histories.add_answers(plain.links[-1], plain.digest, [{"content": "a"}])
    turn(histories, "q39")
    assert histories.match(links("q39", "a", "next")).digest == UNCHANGED, "known, so ambiguous now"
    turn(histories, "q0")
    assert histories.match(links("q0", "a", "next")).digest != UNCHANGED, "evicted before"
