"""What is remembered of conversations is bounded, and found by their whole history."""

from ragboost.config import SessionSettings
from ragboost.rewriting.message_chain import chain_links
from ragboost.rewriting.sent_history import Conversations, HistoryDelta, SentMessage


def make(now: list[float] | None = None, **limits: int) -> Conversations:
    settings = SessionSettings(**{"max_sessions": 10, "max_bytes": 10_000, **limits}, ttl_s=100)
    return Conversations(settings, clock=lambda: now[0] if now else 0.0)


def fill(conversations: Conversations, key: str, *sizes: int) -> None:
    sent = [(b"%d" % at, SentMessage(b"x" * size, (), ())) for at, size in enumerate(sizes)]
    conversations.add(conversations.get(key), HistoryDelta(tuple(sent)))


def test_the_least_recently_used_conversations_are_evicted_first() -> None:
    conversations = make(max_sessions=2)
    for key in ("a", "b", "a", "c"):
        fill(conversations, key, 1)
    assert (len(conversations.get("a").sent), len(conversations.get("b").sent)) == (1, 0)
    assert (len(conversations), conversations.num_bytes) == (2, 2)


def test_bytes_are_bounded_over_all_conversations_and_within_one() -> None:
    conversations = make(max_bytes=1024)
    fill(conversations, "a", 600)
    fill(conversations, "b", 600)
    assert (len(conversations.get("a").sent), conversations.num_bytes) == (0, 600)
    fill(conversations, "c", 600, 600)
    assert list(conversations.get("c").sent) == [b"1"]
    assert conversations.num_bytes == 600


def test_a_message_that_is_rewritten_again_counts_once() -> None:
    conversations = make()
    fill(conversations, "a", 60)
    fill(conversations, "a", 50)
    assert conversations.num_bytes == 50


def test_conversations_expire_after_their_last_use() -> None:
    now = [0.0]
    conversations = make(now)
    fill(conversations, "a", 1)
    now[0] = 90.0
    assert conversations.get("a").sent
    now[0] = 180.0
    assert conversations.get("a").sent
    now[0] = 290.0
    assert not conversations.get("a").sent
    assert conversations.num_bytes == 0


def test_a_link_depends_on_the_whole_history_before_it() -> None:
    one, two = chain_links([b"a", b"b", b"c"]), chain_links([b"A", b"b", b"c"])
    assert not set(one) & set(two)
    assert chain_links([b"a", b"b"]) == one[:2]
    assert chain_links([b"ab", b"c"])[-1] != chain_links([b"a", b"bc"])[-1]
    assert chain_links([b"a"], seed=b"documents") != chain_links([b"a"])
