"""All tenants find public documents, and learn nothing of each other by them."""

from typing import Any

import pytest

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.request import EngineChunkRequest
from ragboost.chunk_cache.core.reusing_request import ChunkCapture, ReusingRequest
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.keys import PUBLIC, Identity, owner_prefix
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.chunk_cache.store.chunks import make_chunk
from tests.chunk_cache.store.places import HungPlace

TOKENS = list(range(100, 160))
DOCUMENTS = [list(range(start, start + 12)) for start in range(1000, 1100, 12)]
SIZE = make_chunk(num_tokens=12).size_bytes


def make_library(store: TieredStore, *, has_public: bool = True) -> ChunkLibrary:
    regime = make_chunk().regime
    return ChunkLibrary(store, identity=Identity("m"), regime=regime, has_public=has_public)


def read(library: ChunkLibrary, *chunks: tuple[int, int], **entry: Any) -> ReusingRequest:
    return ReusingRequest.read(
        "r",
        {"chunks": chunks, **entry},
        TOKENS,
        refusal=None,
        namespace=[entry.pop("salt", None)],
        library=library,
        defaults=EngineChunkRequest(),
        measurable_tokens=None,
    )


def captured(request: ReusingRequest, library: ChunkLibrary, **given: Any) -> list[ChunkCapture]:
    exact_stop = given.get("exact_stop")
    return request.take_captures(library, pass_start=0, num_computed=60, exact_stop=exact_stop)


def test_a_document_is_public_only_if_it_was_computed_alone_and_exactly() -> None:
    library = make_library(TieredStore())
    alone = captured(read(library, (4, 20), public=True, reuse=False), library)
    assert [chunk.key[:16] for chunk in alone] == [owner_prefix(PUBLIC)]
    assert captured(read(library, (4, 20), (20, 40), public=True), library) == []
    assert captured(read(library, (4, 20), public=True), library, exact_stop=0) == []
    for claim in ({"tenant": "a"}, {"tenant": "a", "public": "yes"}, {"tenant": "a", "public": 1}):
        (mine,) = captured(read(library, (4, 20), **claim), library)
        assert not mine.key.startswith(owner_prefix(PUBLIC))


class NotedPlace(HungPlace):
    """Notes the keys that are loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.may_answer.set()

    def load(self, key: str) -> ChunkKV | None:
        self.loaded.append(key)
        return super().load(key)


class Deployment:
    """A store with eight documents that are public, as far as there is room, and a slow place."""

    def __init__(self) -> None:
        self.place = NotedPlace()
        self.store = TieredStore(remote=self.place, host_bytes=8 * SIZE, waits=False)
        self.library = make_library(self.store)
        for tokens in DOCUMENTS:
            self.add(tokens, tenant=PUBLIC)
            self.library.publish(self.library.key(tokens, tenant=PUBLIC))
        self.store.flush()

    def add(self, tokens: list[int], *, tenant: str) -> None:
        self.library.add(self.library.key(tokens, tenant=tenant), kv(tokens), is_first=True)

    def found(self, tenant: str) -> list[bool]:
        """What a tenant finds of all documents, which decides how long its request takes."""
        return [self.find(tenant, tokens) is not None for tokens in DOCUMENTS]

    def find(self, tenant: str, tokens: list[int]) -> ChunkKV | None:
        return self.library.find(self.library.key(tokens, tenant=tenant), tokens)

    def ask(self, tenant: str, tokens: list[int]) -> None:
        """Do what an engine does for a request with a document: load, find, and store."""
        key = self.library.key(tokens, tenant=tenant)
        self.store.prefetch({key: len(tokens)})
        if self.find(tenant, tokens) is None or self.library.lacks(
            key, tokens, base=0, is_exact=True, is_first=True
        ):
            self.add(tokens, tenant=tenant)

    def close(self) -> None:
        self.store.close()


def kv(tokens: list[int]) -> ChunkKV:
    made = make_chunk(num_tokens=len(tokens))
    return ChunkKV(tuple(tokens), made.base, made.layers, made.regime, made.length)


@pytest.mark.parametrize("asked", [[0], [7], [0, 1, 2, 3, 4, 5, 6, 7] * 5])
def test_what_a_tenant_finds_does_not_depend_on_what_others_asked(asked: list[int]) -> None:
    quiet, busy = Deployment(), Deployment()
    for number in asked:
        busy.ask("a", DOCUMENTS[number])
    assert busy.found("b") == quiet.found("b") == [True] * 4 + [False] * (len(DOCUMENTS) - 4)
    busy.store.flush()
    private = [key for key in busy.place.chunks if not key.startswith(owner_prefix(PUBLIC))]
    b_prefix = owner_prefix("b")
    assert private
    assert not any(key.startswith(b_prefix) for key in private)
    # Nothing that a tenant does loads a public document, or lets one be evicted.
    for number in range(len(DOCUMENTS)):
        busy.ask("b", DOCUMENTS[number])
    assert busy.found("c") == quiet.found("c")
    for deployment in (quiet, busy):
        deployment.close()
        public = owner_prefix(PUBLIC)
        assert not [key for key in deployment.place.loaded if key.startswith(public)]


def test_without_the_setting_nothing_public_is_found() -> None:
    store = TieredStore()
    published = make_library(store)
    key = published.key(DOCUMENTS[0], tenant=PUBLIC)
    published.add(key, kv(DOCUMENTS[0]), is_first=True)
    published.publish(key)
    for library, is_found in ((published, True), (make_library(store, has_public=False), False)):
        mine = library.key(DOCUMENTS[0], tenant="a")
        assert (library.find(mine, DOCUMENTS[0]) is not None) is is_found
