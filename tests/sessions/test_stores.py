"""All stores of chat sessions satisfy one contract."""

import sqlite3
import stat
import threading
import time
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from ragboost.config import SessionSettings
from ragboost.errors import ConfigError, SessionStoreError
from ragboost.sessions import ChatSession, ChatSessionStore, sqlite, store_class
from ragboost.sessions.memory import MemoryStore
from ragboost.sessions.redis import RedisStore
from ragboost.sessions.sqlite import SqliteStore


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def store(
    request: pytest.FixtureRequest, clock: Clock, tmp_path: Path
) -> AsyncIterator[ChatSessionStore]:
    bounds = {"max_sessions": 3, "ttl_s": 50.0, "max_bytes": 4096}
    store: ChatSessionStore
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        store = RedisStore(SessionSettings(url=server.url, **bounds), clock=clock)
    else:
        kind = MemoryStore if request.param == "memory" else SqliteStore
        store = kind(SessionSettings(path=tmp_path / "s.db", **bounds), clock=clock)
    await store.open()
    yield store
    await store.close()


def make(name: str, clock: Clock, *, owner: str = "alice") -> ChatSession:
    now = clock()
    return ChatSession(name, owner, now, now, model="m", system="s", metadata={"ü": "\x00"})


async def test_a_session_comes_back_as_it_was(store: ChatSessionStore, clock: Clock) -> None:
    session = make("a", clock)
    await store.create(session)
    assert await store.get("alice", "a") == session
    assert await store.get("bob", "a") is None
    assert await store.get("alice", "b") is None
    assert await store.turns("a") == []


async def test_turns_are_added_in_order_and_only_to_what_was_read(
    store: ChatSessionStore, clock: Clock
) -> None:
    await store.create(make("a", clock))
    first = await store.get("alice", "a")
    assert first is not None
    assert await store.append(first, b"1")
    assert not await store.append(first, b"another 1")
    second = await store.get("alice", "a")
    assert second is not None
    assert (second.num_turns, second.used_at > first.used_at) == (1, True)
    assert await store.append(second, b"2\x00")
    assert await store.turns("a") == [b"1", b"2\x00"]
    assert await store.delete("alice", "a")
    assert not await store.append(second, b"3")
    assert await store.turns("a") == []


async def test_the_least_recently_used_are_dropped_first(
    store: ChatSessionStore, clock: Clock
) -> None:
    for name in "abc":
        await store.create(make(name, clock))
    first = await store.get("alice", "a")
    assert first is not None
    await store.append(first, b"1")
    await store.create(make("d", clock))
    page = await store.list("alice", limit=10)
    assert page is not None
    assert [session.id for session in page.sessions] == ["d", "c", "a"]


async def test_sessions_expire_after_their_last_turn(store: ChatSessionStore, clock: Clock) -> None:
    await store.create(make("a", clock))
    await store.create(make("b", clock))
    clock.now += 40
    session = await store.get("alice", "a")
    assert session is not None
    await store.append(session, b"1")
    clock.now += 20
    assert await store.get("alice", "b") is None
    assert not await store.delete("alice", "b")
    assert await store.get("alice", "a") is not None
    page = await store.list("alice", limit=10)
    assert page is not None
    assert [session.id for session in page.sessions] == ["a"]


async def test_a_session_dropped_during_a_turn_comes_back_with_its_turns(
    store: ChatSessionStore, clock: Clock
) -> None:
    await store.create(make("a", clock))
    first = await store.get("alice", "a")
    assert first is not None
    assert await store.append(first, b"1")
    session = await store.get("alice", "a")
    assert session is not None
    for name in "bcd":
        await store.create(make(name, clock))
    assert await store.get("alice", "a") is None
    assert not await store.append(session, b"2\x00")
    assert await store.restore(session, [b"1", b"2\x00"])
    back = await store.get("alice", "a")
    assert back == replace(session, num_turns=2, used_at=back.used_at if back else 0.0)
    assert await store.turns("a") == [b"1", b"2\x00"]
    page = await store.list("alice", limit=10)
    assert page is not None
    assert sorted(each.id for each in page.sessions) == ["a", "c", "d"], "still bounded"
    assert await store.append(back, b"3")
    assert not await store.restore(session, [b"1", b"another 2"]), "it went on"
    assert await store.turns("a") == [b"1", b"2\x00", b"3"]


async def test_a_session_that_expired_during_a_turn_comes_back(
    store: ChatSessionStore, clock: Clock
) -> None:
    session = make("a", clock)
    await store.create(session)
    clock.now += 60
    assert await store.get("alice", "a") is None
    assert await store.restore(session, [b"1"])
    assert await store.turns("a") == [b"1"]
    assert await store.get("alice", "a") is not None


async def test_a_deleted_session_does_not_come_back(store: ChatSessionStore, clock: Clock) -> None:
    session = make("a", clock)
    await store.create(session)
    assert await store.delete("alice", "a")
    assert not await store.restore(session, [b"1"])
    assert await store.get("alice", "a") is None
    assert await store.turns("a") == []


async def test_pages_follow_each_other(store: ChatSessionStore, clock: Clock) -> None:
    await store.create(make("a", clock))
    await store.create(make("other", clock, owner="bob"))
    await store.create(make("b", clock))
    page = await store.list("alice", limit=1)
    assert page is not None
    assert ([s.id for s in page.sessions], page.has_more) == (["b"], True)
    page = await store.list("alice", limit=1, after="b")
    assert page is not None
    assert ([s.id for s in page.sessions], page.has_more) == (["a"], False)
    assert await store.list("alice", limit=1, after="other") is None


async def test_the_memory_store_is_bounded_in_bytes(clock: Clock) -> None:
    store = MemoryStore(SessionSettings(max_bytes=1024), clock=clock)
    for name in "ab":
        await store.create(make(name, clock))
        session = await store.get("alice", name)
        assert session is not None
        await store.append(session, b"x" * 700)
    assert await store.get("alice", "a") is None
    assert store.num_bytes == 700 + len("msü\x00")


async def test_system_prompts_count_as_bytes_in_memory(clock: Clock) -> None:
    store = MemoryStore(SessionSettings(max_bytes=1024), clock=clock)
    for name in "ab":
        await store.create(replace(make(name, clock), system="x" * 700))
    assert await store.get("alice", "a") is None
    assert await store.delete("alice", "b")
    assert store.num_bytes == 0


async def test_the_file_is_in_wal_mode_and_read_in_another_thread(
    tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "s.db"
    store = SqliteStore(SessionSettings(path=path), clock=clock)
    await store.open()
    await store.create(make("a", clock))
    assert any(t.name.startswith("ragboost-sessions") for t in threading.enumerate())
    await store.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


async def test_processes_that_start_at_the_same_time_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: other.execute("ROLLBACK"))
        monkeypatch.setattr(sqlite, "time", clock)
        store = SqliteStore(SessionSettings(store="sqlite", path=str(path)))
        await store.open()
    await store.close()


async def test_a_file_that_is_not_a_session_store_is_refused(tmp_path: Path) -> None:
    text, newer = tmp_path / "text", tmp_path / "newer"
    text.write_bytes(b"this is no database, but long enough to be one" * 50)
    connection = sqlite3.connect(newer)
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    for path in (text, newer, tmp_path / "missing" / "s.db"):
        with pytest.raises(ConfigError, match=r"session\.path"):
            await SqliteStore(SessionSettings(path=path)).open()


def jump(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the system's clock."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + seconds)


@pytest.mark.parametrize("kind", [MemoryStore, SqliteStore])
@pytest.mark.parametrize("seconds", [-1e8, 1e8])
async def test_no_session_is_lost_when_the_clock_is_set(
    kind: type[MemoryStore | SqliteStore],
    seconds: float,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    store: ChatSessionStore = kind(SessionSettings(path=tmp_path / "s.db"))
    await store.open()
    for name in "ab":
        now = store.now()
        session = ChatSession(name, "alice", now, now)
        await store.create(session)
        assert await store.append(session, b"1")
        jump(monkeypatch, seconds)
    page = await store.list("alice", limit=10)
    assert page is not None
    assert [session.id for session in page.sessions] == ["b", "a"]
    assert await store.turns("a") == [b"1"]
    await store.close()


async def test_a_time_in_the_future_counts_as_the_time_of_opening(
    tmp_path: Path, clock: Clock
) -> None:
    settings = SessionSettings(path=tmp_path / "s.db", ttl_s=50.0)
    clock.now = 1e9
    store = SqliteStore(settings, clock=clock)
    await store.open()
    await store.create(make("a", clock))
    await store.close()
    clock.now = 100.0
    store = SqliteStore(settings, clock=clock)
    await store.open()
    assert await store.get("alice", "a") is not None
    clock.now += 60
    assert await store.get("alice", "a") is None
    await store.close()


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def test_only_the_owner_may_read_the_file(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteStore(SessionSettings(path=tmp_path / "s.db"), clock=clock)
    expected = {"s.db": 0o600, "s.db-wal": 0o600, "s.db-shm": 0o600}
    await store.open()
    await store.create(make("a", clock))
    assert modes(tmp_path) == expected
    for name in expected:
        (tmp_path / name).chmod(0o644)
    assert not caplog.records
    again = SqliteStore(SessionSettings(path=tmp_path / "s.db"), clock=clock)
    await again.open()
    assert modes(tmp_path) == expected
    assert len(caplog.records) == 3
    assert await again.get("alice", "a") is not None
    await again.close()
    await store.close()


async def test_a_failed_write_changes_nothing_and_is_reported_until_one_succeeds(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.01)
    failures: list[None] = []
    store = SqliteStore(
        SessionSettings(path=tmp_path / "s.db"),
        clock=clock,
        on_failure=lambda: failures.append(None),
    )
    await store.open()
    session = make("a", clock)
    await store.create(session)
    await store.check()
    with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SessionStoreError, match="database is locked"):
            await store.append(session, b"1")
        assert store.problem == "database is locked"
        with pytest.raises(SessionStoreError, match="database is locked"):
            await store.check()
        assert await store.turns("a") == []
        other.execute("ROLLBACK")
    assert len(failures) == 2
    await store.check()
    assert store.problem is None
    assert await store.append(session, b"1")
    assert await store.turns("a") == [b"1"]
    await store.close()


async def test_a_full_disk_is_noticed_before_the_next_turn(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "s.db"
    store = SqliteStore(SessionSettings(path=path), clock=clock)
    await store.open()
    session = make("a", clock)
    await store.create(session)
    connection = store._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(SessionStoreError, match="full"):
        await store.append(session, b"x" * 50_000)
    with pytest.raises(SessionStoreError, match="full"):
        await store.check()
    assert await store.get("alice", "a") == session
    connection.execute("PRAGMA max_page_count = 10000")
    await store.check()
    assert await store.append(session, b"x" * 50_000)
    await store.close()


def test_every_store_of_the_setting_has_a_class_that_says_what_it_is() -> None:
    names = get_args(SessionSettings.model_fields["store"].annotation)
    stores = [store_class(SessionSettings(store=name)) for name in names]

    assert [store.is_shared for store in stores] == [False, True, True]
    assert [store.is_on_disk for store in stores] == [False, True, False]
    assert [store.connects_replicas for store in stores] == [False, False, True]
