"""What an API server announces is loaded in the engine's process, which answers when it is."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.request import namespaced
from ragboost.chunk_cache.http.announcements import AnnouncementInbox, Announcer
from ragboost.chunk_cache.http.reports import ReportInbox
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.keys import Identity, behind_key, keys_of
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.chunk_cache.store.chunks import make_chunk
from tests.chunk_cache.store.places import HungPlace
from tests.eventually import DEADLINE_S, eventually

CHUNKS = [list(range(12)), list(range(20, 40))]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def place() -> HungPlace:
    return HungPlace()


@pytest.fixture
def library(place: HungPlace) -> Iterator[ChunkLibrary]:
    store = TieredStore(remote=place, waits=False)
    yield ChunkLibrary(store, identity=Identity(model="m"), regime="regime")
    place.may_answer.set()
    store.close()


@pytest.fixture
async def replies() -> AsyncIterator[ReportInbox]:
    inbox = ReportInbox()
    yield inbox
    inbox.close()


async def test_the_answer_comes_once_the_chunks_are_in_memory(
    library: ChunkLibrary, place: HungPlace, replies: ReportInbox
) -> None:
    tenant = namespaced("t", "salt")
    keys = [library.key(tokens, tenant=tenant) for tokens in CHUNKS]
    place.chunks |= {key: make_chunk(number) for number, key in enumerate(keys)}
    inbox = AnnouncementInbox("e", rank=0, library=lambda: library)
    announcer = Announcer("e", num_inboxes=1)
    ticket = replies.expect()
    announcer.send(CHUNKS, tenant="t", namespace=["salt"], replies_to=[(replies.name, ticket)])
    assert await asyncio.to_thread(place.was_asked.acquire, timeout=DEADLINE_S)
    assert await replies.take(ticket, timeout_s=0) is None
    place.may_answer.set()

    assert await replies.take(ticket, timeout_s=DEADLINE_S) is not None

    assert all(library.store.get(key) is not None for key in keys)
    announcer.close()
    inbox.close()


async def test_what_is_announced_is_loaded_as_the_request_will_want_it(
    place: HungPlace, tmp_path: Path
) -> None:
    """In its first place the KV that is exact there, elsewhere that computed behind others."""
    disk = DiskTier(tmp_path / "kv", capacity_bytes=1 << 24)
    library = ChunkLibrary(TieredStore(), identity=Identity(model="m"), regime="regime")
    first, second = (library.key(tokens) for tokens in CHUNKS)
    for key in (*keys_of(first), *keys_of(second)):
        disk.save(key, make_chunk())
    library.store = store = TieredStore(disk=disk, waits=False)
    inbox = AnnouncementInbox("e", rank=0, library=lambda: library)
    announcer = Announcer("e", num_inboxes=1)
    announcer.send(CHUNKS, tenant="", namespace=[], replies_to=[("nobody", 1)])
    await asyncio.to_thread(eventually, lambda: len(store.memory) == 2)
    assert {key for key, _ in store.memory.items()} == {first, behind_key(second)}
    announcer.close()
    inbox.close()
    store.close()


async def test_garbage_is_ignored_and_what_comes_behind_it_is_loaded(
    library: ChunkLibrary, place: HungPlace
) -> None:
    place.may_answer.set()
    key = library.key(CHUNKS[0])
    place.chunks[key] = make_chunk()
    inbox = AnnouncementInbox("e", rank=0, library=lambda: library)
    announcer = Announcer("e", num_inboxes=1)
    announcer._sockets[0].send(b"\x00garbage")
    for chunks in ([[-1] * 20], [[1, 2], CHUNKS[0]]):
        announcer.send(chunks, tenant="", namespace=[None], replies_to=[("nobody", 1)])
    await asyncio.to_thread(eventually, lambda: library.store.get(key) is not None)
    announcer.close()
    inbox.close()
    again = AnnouncementInbox("e", rank=0, library=lambda: library)
    again.close()
