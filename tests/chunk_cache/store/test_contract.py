"""All places of chunk KV keep one contract: memory, a directory, Redis and Mooncake."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.memory import ChunkTier
from ragboost.chunk_cache.store.remote.tier import RemoteTier
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.chunk_cache.store.chunks import make_chunk, same
from tests.chunk_cache.store.places import OpenPlace, opened
from tests.eventually import eventually

SHARED = ["disk", "redis", "mooncake"]


@pytest.fixture(params=["memory", *SHARED])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ChunkTier]:
    with opened(request.param, tmp_path) as open_place:
        tier = open_place()
        yield tier
        tier.close()


@pytest.fixture(params=SHARED)
def open_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenPlace]:
    with opened(request.param, tmp_path) as found:
        yield found


def test_a_chunk_is_kept_bit_by_bit_replaced_and_removed(place: ChunkTier) -> None:
    assert "a" not in place
    assert place.load("a") is None
    place.remove("a")
    assert place.save("a", make_chunk(1))
    assert place.save("b", make_chunk(2))
    assert "a" in place
    assert same(place.load("a"), make_chunk(1))
    assert place.save("a", make_chunk(3))
    assert same(place.load("a"), make_chunk(3))
    place.remove("a")
    assert place.load("a") is None
    assert same(place.load("b"), make_chunk(2))


def test_a_chunk_larger_than_a_part_comes_back_whole(place: ChunkTier) -> None:
    large = make_chunk(num_tokens=20_000, num_layers=3)  # 5.8 MB
    assert place.save("a", large)
    assert same(place.load("a"), large)


def test_nothing_that_was_stored_before_a_clear_is_found(place: ChunkTier) -> None:
    place.save("a", make_chunk(1))
    place.load("a")  # Mooncake refuses to delete what was just read
    place.clear()
    assert "a" not in place
    assert place.load("a") is None
    assert place.save("a", make_chunk(2))
    assert same(place.load("a"), make_chunk(2))


def test_a_damaged_or_foreign_value_is_a_miss(open_place: OpenPlace) -> None:
    place = open_place()
    for key in ("damaged", "renamed"):
        place.save(key, make_chunk())
    if isinstance(place, DiskTier):
        names = [place.directory / f"{key}.safetensors" for key in ("damaged", "renamed", "other")]
        content = bytearray(names[0].read_bytes())
        content[-1] ^= 1
        names[0].write_bytes(content)
        names[1].rename(names[2])
    else:
        assert isinstance(place, RemoteTier)
        driver = place._driver
        damaged, renamed, other = (place._name(key) for key in ("damaged", "renamed", "other"))
        content = bytearray(driver.get(damaged, max_bytes=1 << 20) or b"")
        content[-1] ^= 1
        assert driver.put(damaged, bytes(content))
        assert driver.put(other, driver.get(renamed, max_bytes=1 << 20) or b"")
    for key in ("damaged", "other"):
        assert place.load(key) is None
        assert key not in place, "it is removed"
    assert place.num_refused == 2
    place.close()


def test_a_second_engine_finds_what_the_first_one_stored(open_place: OpenPlace) -> None:
    with_places = []
    for _ in range(2):
        tier = open_place()
        kind = "disk" if isinstance(tier, DiskTier) else "remote"
        with_places.append(TieredStore(waits=False, **{kind: tier}))  # type: ignore[arg-type]
    first, second = with_places
    first.put("a", make_chunk())
    first.flush()

    second.prefetch({"a": 6, "absent": 6})
    eventually(lambda: not second.is_loading(["a", "absent"]))

    assert same(second.get("a"), make_chunk())
    assert second.get("absent") is None
    assert "a" in second
    first.clear()
    first.flush()
    third = TieredStore(waits=False, **{kind: open_place()})  # type: ignore[arg-type]
    third.prefetch({"a": 6})
    eventually(lambda: not third.is_loading(["a"]))
    assert third.get("a") is None
    for store in (first, second, third):
        store.close()
