"""Places of chunk KV for tests: one that answers when it is allowed to."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.memory import ChunkTier, MemoryTier
from ragboost.chunk_cache.store.remote import join_remote
from ragboost.errors import StoreUnavailableError
from tests.fakes import mooncake
from tests.fakes.mooncake import MooncakeServer
from tests.fakes.redis import PROGRAM, RedisServer

OpenPlace = Callable[[], ChunkTier]


class Place:
    """Chunks in memory; every verb asks first, which may take time and fail."""

    def __init__(self) -> None:
        self.chunks: dict[str, ChunkKV] = {}

    def ask(self, verb: str) -> None:
        """Answer at once; others wait or raise."""

    def __contains__(self, key: str) -> bool:
        self.ask("has")
        return key in self.chunks

    def load(self, key: str) -> ChunkKV | None:
        self.ask("load")
        return self.chunks.get(key)

    def save(self, key: str, chunk: ChunkKV) -> bool:
        self.ask("save")
        self.chunks[key] = chunk
        return True

    def remove(self, key: str) -> None:
        self.ask("remove")
        self.chunks.pop(key, None)

    def clear(self) -> None:
        self.ask("clear")
        self.chunks.clear()

    def close(self) -> None:
        """Do nothing."""


class HungPlace(Place):
    """Answers nothing until it is released; notes the threads that ask."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = threading.Event()
        self.was_asked = threading.Semaphore(0)
        self.threads: set[str] = set()

    def ask(self, verb: str) -> None:
        self.threads.add(threading.current_thread().name)
        self.was_asked.release()
        self.may_answer.wait()


class FailingPlace(HungPlace):
    """Fails to load once it may answer."""

    def load(self, key: str) -> ChunkKV | None:
        super().load(key)
        raise StoreUnavailableError("no answer")


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[OpenPlace]:
    """Yield what opens a place, each time anew; skips the test where there is no server for it."""
    if kind == "memory":
        yield lambda: MemoryTier(
            capacity_bytes=1 << 24,
            clock=lambda: 0.0,
            on_evict=lambda key, chunk: None,
        )
    elif kind == "disk":
        yield lambda: DiskTier(folder, capacity_bytes=1 << 24)
    elif kind == "redis":
        pytest.importorskip("redis", reason="needs the extra redis")
        if PROGRAM is None:
            pytest.skip("neither redis-server nor valkey-server is on PATH")
        with RedisServer() as redis:
            yield lambda: _join(redis.url)
    else:
        if (reason := mooncake.missing()) is not None:
            pytest.skip(reason)
        with MooncakeServer() as store:
            yield lambda: _join(store.url)


def _join(address: str) -> ChunkTier:
    place = join_remote(address)
    assert place is not None
    return place
