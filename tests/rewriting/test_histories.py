"""What is remembered of histories is bounded, and gone as a whole."""

from typing import Any

from ragboost.rewriting.conversations import HistoryDelta, SentMessage
from ragboost.rewriting.histories import PLAIN, ChainMatch, Histories, history_links


def make(**limits: Any) -> Histories:
    now = limits.pop("now", [0.0])
    limits = {"max_sessions": 100, "max_bytes": 10**6, "ttl_s": 100.0, **limits}
    return Histories(**limits, clock=lambda: now[0])


def links(*texts: str, scope: bytes = b"") -> list[bytes]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return history_links(messages, [text.encode() for text in texts], scope=scope)


def turn(histories: Histories, *texts: str, answer: str = "a", size: int = 10) -> ChainMatch:
    match = histories.match(links(*texts), apart=b"documents")
    sent = SentMessage(b"x" * size + texts[-1].encode(), (), ())
    learned = HistoryDelta(((match.links[-1], sent),))
    match = match._replace(digest=histories.add(match, learned, apart=b"documents"))
    histories.answered(match, [{"content": answer}])
    return match


def test_a_history_is_found_by_its_longest_known_part() -> None:
    histories = make()
    turn(histories, "q1", answer="a1")
    second = turn(histories, "q1", "a1", "q2", answer="a2")
    match = histories.match(links("q1", "a1", "q2", "a2", "q3"))
    assert match.digest == second.digest
    assert len(match.past.sent) == 2
    assert len(histories.match(links("q1", "a1", "other")).past.sent) == 1
    for texts in (("q1",), ("q1", "other", "q2"), ("q1", "a1 ", "q2", "a2", "q3")):
        found = histories.match(links(*texts))
        assert (found.digest == PLAIN) is (texts[1:2] != ("a1 ",))
    assert histories.match(links("q1", "a1", "q2", scope=b"other")).digest == PLAIN


def test_the_last_turns_of_a_conversation_go_first() -> None:
    histories = make(max_sessions=2)
    turn(histories, "q1", answer="a1")
    turn(histories, "q1", "a1", "q2", answer="a2")
    turn(histories, "other", answer="a")
    match = histories.match(links("q1", "a1", "q2", "a2", "q3"))
    assert len(match.past.sent) == 1
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
    assert histories.match(links("q1", "a1", "q2")).digest == PLAIN
    assert (len(histories), histories.num_bytes) == (0, 0)


def test_links_are_bounded() -> None:
    histories = make(max_sessions=1)
    for i in range(40):
        plain = histories.match(links(f"q{i}"))
        histories.answered(plain, [{"content": "a"}])
    turn(histories, "q39")
    assert histories.match(links("q39", "a", "next")).digest == PLAIN, "known, so ambiguous now"
    turn(histories, "q0")
    assert histories.match(links("q0", "a", "next")).digest != PLAIN, "forgotten before"
