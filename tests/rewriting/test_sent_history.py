"""What is remembered of conversations is bounded, and found by their whole history."""

from ragboost.config import SessionSettings
from ragboost.rewriting.json_body import chain_links
from ragboost.rewriting.sent_history import FORM_BYTES, Conversations, HistoryDelta, SentMessage


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
    assert (len(conversations.get("a").forms), len(conversations.get("b").forms)) == (1, 0)
    assert (len(conversations), conversations.num_bytes) == (2, 2 + 2 * FORM_BYTES)


def test_bytes_are_bounded_over_all_conversations_and_within_one() -> None:
    conversations = make(max_bytes=1000 + FORM_BYTES)
    fill(conversations, "a", 600)
    fill(conversations, "b", 600)
    assert (len(conversations.get("a").forms), conversations.num_bytes) == (0, 600 + FORM_BYTES)
    fill(conversations, "c", 600, 600)
    assert list(conversations.get("c").forms) == [b"1"]
    assert conversations.num_bytes == 600 + FORM_BYTES


def test_every_form_of_a_message_counts_and_the_same_form_once() -> None:
    conversations = make()
    for size in (60, 50, 60):
        fill(conversations, "a", size)
    assert conversations.num_bytes == 110 + 2 * FORM_BYTES


def test_the_forms_of_a_message_are_bounded_and_the_newest_are_kept() -> None:
    conversations = make()
    for size in range(1, 21):
        fill(conversations, "a", size)
    (forms,) = conversations.get("a").forms.values()
    assert [len(form.sent.message) for form in forms] == list(range(13, 21))
    assert conversations.num_bytes == sum(range(13, 21)) + 8 * FORM_BYTES


def test_conversations_expire_after_their_last_use() -> None:
    now = [0.0]
    conversations = make(now)
    fill(conversations, "a", 1)
    now[0] = 90.0
    assert conversations.get("a").forms
    now[0] = 180.0
    assert conversations.get("a").forms
    now[0] = 290.0
    assert not conversations.get("a").forms
    assert conversations.num_bytes == 0


def test_a_link_depends_on_the_whole_history_before_it() -> None:
    one, two = chain_links([b"a", b"b", b"c"]), chain_links([b"A", b"b", b"c"])
    assert not set(one) & set(two)
    assert chain_links([b"a", b"b"]) == one[:2]
    assert chain_links([b"ab", b"c"])[-1] != chain_links([b"a", b"bc"])[-1]
    assert chain_links([b"a"], seed=b"documents") != chain_links([b"a"])
