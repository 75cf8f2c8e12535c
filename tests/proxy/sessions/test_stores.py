"""All stores of chat sessions satisfy one contract."""

import asyncio
import os
import sqlite3
import stat
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from ragboost.config import SessionSettings
from ragboost.errors import ConfigError, SessionStoreError
from ragboost.proxy.sessions import ChatSession, ChatSessionStore, Page, sqlite, store_class
from ragboost.proxy.sessions.redis import RedisStore
from ragboost.proxy.sessions.sqlite import MemoryStore, SqliteStore


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
    bounds, max_bytes = {"max_sessions": 3, "ttl_s": 50.0}, 1 << 20
    store: ChatSessionStore
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        settings = SessionSettings(url=server.url, **bounds)
        store = RedisStore(settings, max_bytes=max_bytes, clock=clock)
    else:
        kind = MemoryStore if request.param == "memory" else SqliteStore
        settings = SessionSettings(path=tmp_path / "s.db", **bounds)
        store = kind(settings, max_bytes=max_bytes, clock=clock)
    await store.open()
    yield store
    await store.close()


async def get(store: ChatSessionStore, owner: str, name: str) -> ChatSession | None:
    transcript = await store.read(owner, name)
    return transcript.session if transcript else None


async def turns(store: ChatSessionStore, name: str) -> list[bytes]:
    transcript = await store.read("alice", name)
    return list(transcript.turns) if transcript else []


def make(name: str, clock: Clock, *, owner: str = "alice", user: str | None = "u") -> ChatSession:
    now = clock()
    return ChatSession(name, owner, now, now, 0, user, "m", "s", {"ü": "\x00"})


async def test_a_session_comes_back_as_it_was(store: ChatSessionStore, clock: Clock) -> None:
    session = make("a", clock)
    await store.create(session)
    assert await get(store, "alice", "a") == session
    assert await get(store, "bob", "a") is None
    assert await get(store, "alice", "b") is None
    assert await turns(store, "a") == []


async def test_turns_are_added_in_order_and_only_to_what_was_read(
    store: ChatSessionStore, clock: Clock
) -> None:
    await store.create(make("a", clock))
    first = await get(store, "alice", "a")
    assert first is not None
    assert await store.append(first, b"1")
    assert not await store.append(first, b"another 1")
    second = await get(store, "alice", "a")
    assert second is not None
    assert (second.num_turns, second.used_at > first.used_at) == (1, True)
    assert await store.append(second, b"2\x00")
    assert await turns(store, "a") == [b"1", b"2\x00"]
    assert await store.delete("alice", "a")
    assert not await store.append(second, b"3")
    assert await turns(store, "a") == []


async def test_the_least_recently_used_are_dropped_first(
    store: ChatSessionStore, clock: Clock
) -> None:
    for name in "abc":
        await store.create(make(name, clock))
    first = await get(store, "alice", "a")
    assert first is not None
    await store.append(first, b"1")
    await store.create(make("d", clock))
    page = await store.list("alice", "u", limit=10)
    assert page is not None
    assert [session.id for session in page.sessions] == ["d", "c", "a"]


async def test_sessions_expire_after_their_last_turn(store: ChatSessionStore, clock: Clock) -> None:
    await store.create(make("a", clock))
    await store.create(make("b", clock))
    clock.now += 40
    session = await get(store, "alice", "a")
    assert session is not None
    await store.append(session, b"1")
    clock.now += 20
    assert await get(store, "alice", "b") is None
    assert not await store.delete("alice", "b")
    assert await get(store, "alice", "a") is not None
    page = await store.list("alice", "u", limit=10)
    assert page is not None
    assert [session.id for session in page.sessions] == ["a"]


async def test_a_session_dropped_during_a_turn_comes_back_with_its_turns(
    store: ChatSessionStore, clock: Clock
) -> None:
    await store.create(make("a", clock))
    first = await get(store, "alice", "a")
    assert first is not None
    assert await store.append(first, b"1")
    session = await get(store, "alice", "a")
    assert session is not None
    for name in "bcd":
        await store.create(make(name, clock))
    assert await get(store, "alice", "a") is None
    assert not await store.append(session, b"2\x00")
    assert await store.restore(session, [b"1", b"2\x00"])
    back = await get(store, "alice", "a")
    assert back == replace(session, num_turns=2, used_at=back.used_at if back else 0.0)
    assert await turns(store, "a") == [b"1", b"2\x00"]
    page = await store.list("alice", "u", limit=10)
    assert page is not None
    assert sorted(each.id for each in page.sessions) == ["a", "c", "d"], "still bounded"
    assert await store.append(back, b"3")
    assert not await store.restore(session, [b"1", b"another 2"]), "it went on"
    assert await turns(store, "a") == [b"1", b"2\x00", b"3"]


async def test_a_session_that_expired_during_a_turn_comes_back(
    store: ChatSessionStore, clock: Clock
) -> None:
    session = make("a", clock)
    await store.create(session)
    clock.now += 60
    assert await get(store, "alice", "a") is None
    assert await store.restore(session, [b"1"])
    assert await turns(store, "a") == [b"1"]
    assert await get(store, "alice", "a") is not None


async def test_a_deleted_session_does_not_come_back(store: ChatSessionStore, clock: Clock) -> None:
    session = make("a", clock)
    await store.create(session)
    assert await store.delete("alice", "a")
    assert not await store.restore(session, [b"1"])
    assert await get(store, "alice", "a") is None
    assert await turns(store, "a") == []


async def test_pages_follow_each_other(store: ChatSessionStore, clock: Clock) -> None:
    await store.create(make("a", clock))
    await store.create(make("other", clock, owner="bob"))
    await store.create(make("b", clock))
    page = await store.list("alice", "u", limit=1)
    assert page is not None
    assert ([s.id for s in page.sessions], page.has_more) == (["b"], True)
    page = await store.list("alice", "u", limit=1, after="b")
    assert page is not None
    assert ([s.id for s in page.sessions], page.has_more) == (["a"], False)
    assert await store.list("alice", "u", limit=1, after="other") is None


@pytest.mark.parametrize("kind", [MemoryStore, SqliteStore])
async def test_turns_and_system_prompts_are_bounded_in_bytes(
    kind: type[MemoryStore | SqliteStore], tmp_path: Path
) -> None:
    store = kind(SessionSettings(path=tmp_path / "s.db"), max_bytes=1 << 20)
    await store.open()
    now = store.now()
    for number, name in enumerate("abcdef"):
        session = ChatSession(name, "alice", now, now + number, user="u", system="x" * 150_000)
        await store.create(session)
        for at in range(10):
            assert await store.append(replace(session, num_turns=at), b"x" * 15_000)
        assert len(await turns(store, name)) == 10
    page = await store.list("alice", "u", limit=10)
    assert page is not None
    assert [each.id for each in page.sessions] == ["f", "e", "d"]
    assert await store.restore(replace(session, id="g"), [b"x" * (2 << 20)]), "larger than all"
    page = await store.list("alice", "u", limit=10)
    assert page is not None
    assert [each.id for each in page.sessions] == ["g"]
    await store.close()


async def test_only_sessions_with_this_user_are_listed(
    store: ChatSessionStore, clock: Clock
) -> None:
    for name, user in (("a", "u"), ("b", "v"), ("c", None)):
        await store.create(make(name, clock, user=user))
    pages = [await store.list("alice", user, limit=10) for user in ("u", "v", "w", "")]
    assert [[one.id for one in page.sessions] for page in pages if page] == [["a"], ["b"], [], []]
    assert await store.list("bob", "u", limit=10) == Page([], False)
    assert await store.list("alice", "u", limit=10, after="b") is None
    assert await get(store, "alice", "c") is not None


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


async def test_processes_that_start_at_the_same_time_share_the_file(tmp_path: Path) -> None:
    stores = [SqliteStore(SessionSettings(path=tmp_path / "s.db")) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    now = stores[0].now()
    for at, store in enumerate(stores):
        await store.create(ChatSession(str(at), "alice", now, now, user="u"))
    page = await stores[0].list("alice", "u", limit=10)
    assert page is not None
    assert len(page.sessions) == 8
    for store in stores:
        await store.close()


def content(path: Path) -> tuple[bytes, int, list[str]]:
    mode = stat.S_IMODE(path.stat().st_mode)
    return path.read_bytes(), mode, sorted(file.name for file in path.parent.iterdir())


@pytest.mark.parametrize("version", [0, 1, 9])
async def test_the_database_of_another_program_is_refused_untouched(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE sessions (id TEXT)")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.commit()
    path.chmod(0o644)
    before = content(path)
    with pytest.raises(ConfigError, match=r"session\.path.*choose another path"):
        await SqliteStore(SessionSettings(path=path)).open()
    assert content(path) == before


async def test_a_folder_and_a_pipe_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ConfigError, match="is not a file"):
            await SqliteStore(SessionSettings(path=path)).open()


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_file_that_is_removed_while_it_is_open_is_noticed(
    tmp_path: Path, clock: Clock, is_replaced: bool
) -> None:
    path = tmp_path / "s.db"
    store = SqliteStore(SessionSettings(path=path), clock=clock)
    await store.open()
    session = make("a", clock)
    await store.create(session)
    path.rename(tmp_path / "elsewhere")
    if is_replaced:
        path.touch()
    for call in (
        store.check(),
        store.append(session, b"1"),
        store.create(make("b", clock)),
        store.delete("alice", "a"),
    ):
        with pytest.raises(SessionStoreError, match="RemovedFileError"):
            await call
    assert store.problem == "SQLite: RemovedFileError"
    (tmp_path / "elsewhere").rename(path)
    await store.check()
    assert await store.append(session, b"1")
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
        session = ChatSession(name, "alice", now, now, user="u")
        await store.create(session)
        assert await store.append(session, b"1")
        jump(monkeypatch, seconds)
    page = await store.list("alice", "u", limit=10)
    assert page is not None
    assert [session.id for session in page.sessions] == ["b", "a"]
    assert await turns(store, "a") == [b"1"]
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
    assert await get(store, "alice", "a") is not None
    clock.now += 60
    assert await get(store, "alice", "a") is None
    await store.close()


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def test_only_the_owner_may_read_the_file(tmp_path: Path, clock: Clock) -> None:
    store = SqliteStore(SessionSettings(path=tmp_path / "s.db"), clock=clock)
    await store.open()
    await store.create(make("a", clock))
    found = modes(tmp_path)
    assert [found[name] for name in ("s.db", "s.db-wal", "s.db-shm")] == [0o600] * 3
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
        with pytest.raises(SessionStoreError, match="SQLite: SQLITE_BUSY"):
            await store.append(session, b"1")
        assert store.problem == "SQLite: SQLITE_BUSY"
        with pytest.raises(SessionStoreError, match="SQLite: SQLITE_BUSY"):
            await store.check()
        assert await turns(store, "a") == []
        other.execute("ROLLBACK")
    assert len(failures) == 2
    await store.check()
    assert store.problem is None
    assert await store.append(session, b"1")
    assert await turns(store, "a") == [b"1"]
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
    with pytest.raises(SessionStoreError, match="SQLite: SQLITE_FULL"):
        await store.append(session, b"x" * 50_000)
    with pytest.raises(SessionStoreError, match="SQLite: SQLITE_FULL"):
        await store.check()
    assert await get(store, "alice", "a") == session
    connection.execute("PRAGMA max_page_count = 10000")
    await store.check()
    assert await store.append(session, b"x" * 50_000)
    await store.close()


async def test_a_turn_is_refused_while_another_process_has_locked_the_file(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_CHECK_TIMEOUT_S", 0.01)
    store = SqliteStore(SessionSettings(path=tmp_path / "s.db"), clock=clock)
    await store.open()
    with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SessionStoreError, match="SQLite: SQLITE_BUSY"):
            await store.check()
        other.execute("ROLLBACK")
    await store.check()
    await store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(tmp_path)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("may not mount a file system")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True, capture_output=True)


def fill(folder: Path) -> Path:
    """Leave no space on a file system."""
    with (folder / "rest").open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass
    return folder / "rest"


async def test_a_turn_that_meets_a_full_disk_is_stored_and_the_next_one_refused(
    small_disk: Path, clock: Clock
) -> None:
    store = SqliteStore(SessionSettings(path=small_disk / "s.db"), clock=clock)
    await store.open()
    session = make("a", clock)
    await store.create(session)
    rest = fill(small_disk)
    await store.check()
    assert await store.append(session, b"x" * 1_000_000)
    fill(small_disk)
    with pytest.raises(SessionStoreError, match="SQLite: ENOSPC"):
        await store.check()
    assert await turns(store, "a") == [b"x" * 1_000_000]
    rest.unlink()
    await store.check()
    await store.close()


async def test_sessions_can_be_deleted_from_a_full_disk(small_disk: Path, clock: Clock) -> None:
    store = SqliteStore(SessionSettings(path=small_disk / "s.db"), clock=clock)
    await store.open()
    names = [str(number) for number in range(200)]
    for name in names:
        await store.restore(make(name, clock), [b"x" * 30_000])
    rest = fill(small_disk)
    session = make("new", clock)
    with pytest.raises(SessionStoreError):
        await store.restore(session, [b"x" * 9_000_000])
    fill(small_disk)
    for name in names[:-1]:
        assert await store.delete("alice", name)
        assert await get(store, "alice", name) is None
    assert len(await turns(store, names[-1])) == 1
    rest.unlink()
    await store.check()
    assert await store.restore(session, [b"x"])
    await store.close()


def test_every_store_of_the_setting_has_a_class_that_says_what_it_is() -> None:
    names = get_args(SessionSettings.model_fields["store"].annotation)
    stores = [store_class(SessionSettings(store=name)) for name in names]

    assert [store.is_shared for store in stores] == [False, True, True]
    assert [store.is_on_disk for store in stores] == [False, True, False]
    assert [store.connects_replicas for store in stores] == [False, False, True]
