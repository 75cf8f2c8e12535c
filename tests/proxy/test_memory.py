"""What the proxy remembers is bounded."""

from ragboost.config import Settings
from ragboost.proxy.observability.metrics import Metrics
from ragboost.rewriting.conversations import Conversations, SentMessage, chain
from ragboost.rewriting.tenants import TenantKey, Tenants, user_of


def make(**limits: float) -> Conversations:
    now = limits.pop("now", 0.0)
    return Conversations(
        max_sessions=int(limits.get("max_sessions", 10)),
        max_bytes=int(limits.get("max_bytes", 1000)),
        ttl_s=limits.get("ttl_s", 100.0),
        clock=lambda: now,
    )


def fill(conversations: Conversations, key: str, *sizes: int) -> None:
    conversation = conversations.get(key)
    for at, size in enumerate(sizes):
        conversation.remember(b"%d" % at, SentMessage(b"x" * size, (), ()))
    conversations.put(conversation)


def test_the_least_recently_used_conversations_go_first() -> None:
    conversations = make(max_sessions=2)
    for key in ("a", "b", "a", "c"):
        fill(conversations, key, 1)
    assert (len(conversations.get("a").sent), len(conversations.get("b").sent)) == (1, 0)
    assert (len(conversations), conversations.num_bytes) == (2, 2)


def test_bytes_are_bounded_over_all_conversations_and_within_one() -> None:
    conversations = make(max_bytes=100)
    fill(conversations, "a", 60)
    fill(conversations, "b", 60)
    assert (len(conversations.get("a").sent), conversations.num_bytes) == (0, 60)
    fill(conversations, "c", 60, 60)
    assert list(conversations.get("c").sent) == [b"1"]
    assert conversations.num_bytes == 60


def test_a_message_that_is_sent_anew_counts_once() -> None:
    conversations = make()
    fill(conversations, "a", 60)
    fill(conversations, "a", 50)
    assert conversations.num_bytes == 50


def test_conversations_expire() -> None:
    times = iter([0.0, 0.0, 5.0, 50.0])
    conversations = Conversations(
        max_sessions=9, max_bytes=99, ttl_s=10.0, clock=lambda: next(times)
    )
    fill(conversations, "a", 1)
    assert conversations.get("a").sent
    assert not conversations.get("a").sent
    assert conversations.num_bytes == 0


def test_a_link_depends_on_the_whole_history_before_it() -> None:
    one, two = chain([b"a", b"b", b"c"]), chain([b"A", b"b", b"c"])
    assert not set(one) & set(two)
    assert chain([b"a", b"b"]) == one[:2]
    assert chain([b"ab", b"c"])[-1] != chain([b"a", b"bc"])[-1]
    assert chain([b"a"], seed=b"documents") != chain([b"a"])


def test_the_least_recently_used_tenants_go_first() -> None:
    tenants = Tenants(Settings(proxy={"max_tenants": 2}))  # type: ignore[arg-type]
    first = tenants.get(TenantKey("a", ""))
    tenants.get(TenantKey("b", ""))
    assert tenants.get(TenantKey("a", "")) is first
    tenants.get(TenantKey("c", ""))
    assert (len(tenants), tenants.get(TenantKey("a", "")) is first) == (2, True)


def test_users_are_told_apart_by_all_their_credentials() -> None:
    headers = [
        [],
        [(b"authorization", b"a")],
        [(b"x-api-key", b"a")],
        [(b"authorization", b"a"), (b"x-api-key", b"b")],
        [(b"authorization", b"b")],
    ]
    assert len({user_of(each) for each in headers}) == len(headers)
    assert user_of([(b"x-other", b"z")]) == user_of([])


def test_model_names_cannot_fill_the_metrics() -> None:
    metrics = Metrics()
    for i in range(500):
        metrics.count_request("chat", f"model-{i}", "ok", seconds=0.1)
    lines = metrics.render().decode().splitlines()
    counters = [line for line in lines if line.startswith("ragboost_requests_total{")]
    assert len(counters) == 101
    assert any('model="other"' in line and line.endswith(" 400.0") for line in counters)
