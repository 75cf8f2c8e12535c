"""Chunks are listed, pinned and removed by those who may reuse them, and by nobody else."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.request import namespaced
from ragboost.chunk_cache.http.announcements import AnnouncementInbox, Announcer
from ragboost.chunk_cache.http.reports import ReportInbox
from ragboost.chunk_cache.http.store_commands import (
    StoreCommand,
    StoreOptions,
    read_store_options,
    run_command,
)
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.keys import Identity, behind_key, owner_prefix
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.chunk_cache.vllm.catalogue import ListStore
from ragboost.errors import RequestError
from tests.chunk_cache.store.chunks import make_chunk
from tests.eventually import DEADLINE_S, eventually

CHUNKS = [list(range(12)), list(range(20, 40)), list(range(50, 70))]


@pytest.fixture
def library() -> Iterator[ChunkLibrary]:
    store = TieredStore(host_bytes=1 << 20, waits=False)
    library = ChunkLibrary(store, identity=Identity(model="m"), regime="regime")
    for tenant in ("a", "b", ""):
        for tokens in CHUNKS:
            store.put(library.key(tokens, tenant=tenant), make_chunk())
    yield library
    store.close()


def ask(library: ChunkLibrary, options: StoreOptions | None = None, **fields: Any) -> Any:
    return run_command(StoreCommand(("inbox", 1), options, **fields), library)


def keys(answer: Any) -> set[str]:
    return {row["key"] for row in answer["chunks"]}


def test_a_tenant_lists_its_own_chunks_and_no_others(library: ChunkLibrary) -> None:
    found = {name: keys(ask(library, StoreOptions(), tenant=name)) for name in ("a", "b", "", "c")}
    assert {name: len(keys) for name, keys in found.items()} == {"a": 3, "b": 3, "": 3, "c": 0}
    assert len(set.union(*found.values())) == 9
    salted = namespaced("a", "salt")
    assert keys(ask(library, StoreOptions(), tenant="a", namespace=["salt"])) == set()
    library.store.put(library.key(CHUNKS[0], tenant=salted), make_chunk())
    assert len(keys(ask(library, StoreOptions(), tenant="a", namespace=["salt"]))) == 1


@pytest.mark.parametrize("options", [None, *map(StoreOptions, ["list", "pin", "unpin", "evict"])])
def test_a_list_of_what_several_workers_have_takes_no_commands(
    options: StoreOptions | None,
) -> None:
    store = ListStore(capacity_bytes=1 << 20, size=2, is_backed=True)
    listed = ChunkLibrary(store, identity=Identity(model="m"), regime="regime")
    store.put(listed.key(CHUNKS[0]), make_chunk())
    assert ask(listed, options, chunks=CHUNKS[:1]) == {"error": "several_workers"}
    assert listed.key(CHUNKS[0]) in store
    assert not store.take_dropped()


@pytest.mark.parametrize("action", ["list", "pin", "unpin", "evict"])
def test_another_tenants_key_does_nothing_and_tells_nothing(
    library: ChunkLibrary, action: Any
) -> None:
    theirs = library.key(CHUNKS[0], tenant="a")
    options = StoreOptions(action=action, keys=[theirs])
    before = library.store.version
    assert ask(library, options, tenant="b") == {"chunks": [], "after": None}
    assert theirs in library
    assert library.store.version == before


def test_a_chunk_is_named_by_its_text_or_by_its_key(library: ChunkLibrary) -> None:
    key = library.key(CHUNKS[1], tenant="a")
    pinned = ask(library, StoreOptions(action="pin"), tenant="a", chunks=[CHUNKS[1]])
    row = {"key": key, "done": True, "places": ["memory"], "pinned": True}
    assert pinned["chunks"] == [row]
    ask(library, StoreOptions(action="evict", keys=[key]), tenant="a")
    assert keys(ask(library, StoreOptions(), tenant="a")) == {
        library.key(tokens, tenant="a") for tokens in (CHUNKS[0], CHUNKS[2])
    }
    ask(library, StoreOptions(action="evict"), tenant="a", chunks=CHUNKS)
    assert keys(ask(library, StoreOptions(), tenant="a")) == set()
    assert len(keys(ask(library, StoreOptions(), tenant="b"))) == 3


@pytest.mark.parametrize("has_first", [False, True])
def test_the_kv_of_a_document_is_listed_pinned_and_removed_as_one(
    library: ChunkLibrary, has_first: bool
) -> None:
    key, store = library.key(CHUNKS[1], tenant="a"), library.store
    if not has_first:
        store.discard(key)
    store.put(behind_key(key), make_chunk())

    def act(action: Any = "list", **options: Any) -> Any:
        asked = StoreOptions(action=action, **options)
        (row,) = ask(library, asked, tenant="a", chunks=[CHUNKS[1]])["chunks"]
        assert row["key"] == key
        return row

    assert keys(ask(library, StoreOptions(), tenant="a")) == {
        library.key(tokens, tenant="a") for tokens in CHUNKS
    }
    assert act()["places"] == ["memory"]
    assert act("pin")["pinned"]
    assert store.is_kept(behind_key(key))
    act("unpin")
    assert not act()["pinned"]
    store.put(key, make_chunk())  # as a request does meanwhile
    assert act("evict")["done"]
    assert act()["places"] == []
    assert len(keys(ask(library, StoreOptions(), tenant="a"))) == 2


def test_a_long_list_comes_in_parts(library: ChunkLibrary) -> None:
    found, after = list[str](), ""
    while after is not None:
        answer = ask(library, StoreOptions(limit=1, after=after), tenant="a")
        found += [row["key"] for row in answer["chunks"]]
        after = answer["after"]
    assert found == sorted(set(found))
    assert len(found) == 3


@pytest.mark.parametrize(
    "store",
    [
        {"action": "drop"},
        {"action": "expire"},
        {"keys": ["a"] * 1001},
        {"keys": [1]},
        {"keys": [owner_prefix("a") + "/../../another.safetensors"]},  # its place would fail
        {"keys": [owner_prefix("a") + "0" * 32 + "\n"]},
        {"keys": [owner_prefix("a") + "0" * 100_000]},  # its answer would be too long
        {"after": "0" * 49},
        {"keys": "a"},
        {"limit": 0},
        {"limit": 1001},
        {"more": 1},
        [],
        "list",
    ],
)
def test_malformed_options_are_refused(store: Any) -> None:
    if store == []:
        assert read_store_options({"store": store}) == StoreOptions()  # as if there were none
        return
    with pytest.raises(RequestError, match=r"ragboost\.store"):
        read_store_options({"store": store})


@pytest.mark.parametrize("key", ["../../etc/passwd", "", "\0", "é" * 100, "a" * 100_000])
def test_odd_keys_are_nobodys(library: ChunkLibrary, key: str) -> None:
    for action in ("pin", "evict", "list", "unpin"):
        answer = ask(library, StoreOptions(action=action, keys=[key]))  # type: ignore[arg-type]
        assert answer["chunks"] == []


@pytest.fixture
async def replies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ReportInbox]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    inbox = ReportInbox()
    yield inbox
    inbox.close()


async def test_an_engine_answers_over_its_socket(
    library: ChunkLibrary, replies: ReportInbox
) -> None:
    inbox, announcer = (
        AnnouncementInbox("e", rank=0, library=lambda: library),
        Announcer("e", num_inboxes=1),
    )

    async def told(*command: Any) -> Any:
        ticket = replies.expect()
        announcer.command(StoreCommand((replies.name, ticket), *command))
        return await replies.take_fields(ticket, timeout_s=DEADLINE_S)

    listed = await told(StoreOptions(), [], "a")
    stats = await told()
    evicted = await told(StoreOptions(action="evict"), CHUNKS, "a")
    assert len(listed["chunks"]) == len(evicted["chunks"]) == 3
    assert stats["tiers"][0]["name"] == "memory"
    assert stats["tiers"][0]["entries"] == 9
    assert not library.store.keys(owner_prefix("a"))  # type: ignore[attr-defined]
    assert len((await told())["tiers"]) == 1
    assert (await told(StoreOptions(), [], "a"))["chunks"] == []
    announcer.close()
    inbox.close()


def test_evicting_is_done_once_the_disk_has_removed_the_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_read_only(path: Path, **_: object) -> None:
        raise OSError("read-only file system")

    now = [0.0]
    disk = DiskTier(tmp_path, capacity_bytes=1 << 24)
    store = TieredStore(disk=disk, waits=False, clock=lambda: now[0])
    library = ChunkLibrary(store, identity=Identity(model="m"), regime="regime")
    key = library.key(CHUNKS[0])
    store.put(key, make_chunk())
    store.flush()
    evict = StoreOptions(action="evict", keys=[key])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", is_read_only)
        (row,) = ask(library, evict)["chunks"]
        assert (row["done"], row["places"]) == (False, ["disk"])
        assert store._tiers[0].drain()
        assert key in disk
        assert key not in store, "nobody finds it"
        assert ask(library, StoreOptions(keys=[key]))["chunks"][0]["places"] == ["disk"]
    now[0] = 100.0
    ask(library, evict)
    eventually(lambda: not ask(library, StoreOptions(keys=[key]))["chunks"][0]["places"])
    assert key not in disk
    store.close()
