"""KV moves between tiers by heat, comes back in time or not at all, and is never wrong."""

import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store import background, load_table
from ragboost.chunk_cache.store import disk as disk_module
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.chunk_cache.store.workers import Speeds
from tests.chunk_cache.families import build_adapter, make_prompt
from tests.chunk_cache.prompts import stored_kv
from tests.chunk_cache.store.chunks import files_of_at_most, make_chunk, same
from tests.eventually import DEADLINE_S, eventually
from tests.kv_integrity import check_store

SIZE = make_chunk().size_bytes


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter("qwen3-qk-norm")


@pytest.fixture
def disk(tmp_path: Path) -> DiskTier:
    return DiskTier(tmp_path, capacity_bytes=1 << 24)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Semaphore]:
    """Chunks are read one for each release."""
    allowed = threading.Semaphore(0)
    read = disk_module.decode

    def wait(content: bytearray, key: str) -> ChunkKV:
        allowed.acquire()
        return read(content, key)

    monkeypatch.setattr(disk_module, "decode", wait)
    yield allowed
    allowed.release(1000)


def slow_disk() -> Speeds:
    """Loading takes a second a token, computing a millisecond."""
    speeds = Speeds()
    for _ in range(4):
        speeds.loaded(1, 1.0)
    speeds.computed(1000, 1.0)
    return speeds


def test_kv_that_leaves_memory_comes_back_from_disk(disk: DiskTier) -> None:
    store = TieredStore(host_bytes=2 * SIZE, disk=disk)
    assert isinstance(store, TieredStore)
    for number in range(6):
        assert store.put(str(number), make_chunk(number))
        check_store(store)
    store.flush()
    assert len(store.memory) == 2
    for number in range(6):
        assert same(store.get(str(number)), make_chunk(number))
    assert store.get("absent") is None
    store.close()


def test_a_new_process_finds_what_the_last_one_stored(disk: DiskTier) -> None:
    first = TieredStore(host_bytes=10 * SIZE, disk=disk)
    first.put("a", make_chunk())
    first.close()
    second = TieredStore(host_bytes=10 * SIZE, disk=disk)
    assert "a" in second
    assert same(second.get("a"), make_chunk())
    second.close()


def test_a_chunk_too_large_for_memory_goes_to_disk(disk: DiskTier) -> None:
    store = TieredStore(host_bytes=SIZE - 1, disk=disk)
    assert store.put("a", make_chunk())
    store.flush()
    assert same(store.get("a"), make_chunk())
    store.close()
    nowhere = TieredStore(host_bytes=SIZE - 1)
    assert not nowhere.put("a", make_chunk())
    assert nowhere.get("a") is None


def test_storing_again_keeps_and_replacing_changes_and_discarding_drops_everywhere(
    disk: DiskTier,
) -> None:
    store = TieredStore(host_bytes=10 * SIZE, disk=disk)
    store.put("a", make_chunk(1))
    store.put("a", make_chunk(2))
    assert same(store.get("a"), make_chunk(1))
    store.replace("a", make_chunk(3))
    store.replace("absent", make_chunk(3))
    store.flush()
    assert same(store.get("a"), make_chunk(3))
    assert same(disk.load("a"), make_chunk(3))
    assert "absent" not in store
    store.discard("a")
    assert "a" not in store
    assert store.get("a") is None
    store.put("b", make_chunk())
    store.clear()
    assert "b" not in store
    assert store.memory.size_bytes == 0
    store.close()


@pytest.mark.parametrize("drop", [lambda store: store.discard("a"), TieredStore.clear])
def test_a_chunk_dropped_while_it_is_saved_does_not_come_back(
    disk: DiskTier, monkeypatch: pytest.MonkeyPatch, drop: Callable[[TieredStore], None]
) -> None:
    is_saving, may_end = threading.Event(), threading.Event()
    save = DiskTier.save

    def wait(self: DiskTier, key: str, chunk: ChunkKV) -> bool:
        is_saving.set()
        assert may_end.wait(DEADLINE_S)
        return save(self, key, chunk)

    monkeypatch.setattr(DiskTier, "save", wait)
    store = TieredStore(host_bytes=1 << 20, disk=disk)
    store.put("a", make_chunk())
    assert is_saving.wait(DEADLINE_S)
    drop(store)
    may_end.set()
    store.flush()

    assert store.get("a") is None
    assert "a" not in disk
    store.close()


def test_announced_chunks_load_while_something_else_is_done(
    disk: DiskTier, gate: threading.Semaphore
) -> None:
    for number in range(2):
        disk.save(str(number), make_chunk(number))
    store = TieredStore(host_bytes=10 * SIZE, disk=disk)
    store.prefetch({"0": 6, "1": 6, "absent": 6})  # returns although no chunk can be read yet
    assert "0" not in store.memory
    gate.release(2)
    assert same(store.get("1"), make_chunk(1))
    assert same(store.get("0"), make_chunk(0))
    store.close()


def test_the_speed_of_loading_is_that_of_all_chunks_of_a_request_together(
    disk: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = defaultdict[int, float](float)  # by thread
    read = disk_module.decode

    def take_three_seconds(content: bytearray, key: str) -> ChunkKV:
        seconds[threading.get_ident()] += 3.0
        return read(content, key)

    clock = SimpleNamespace(perf_counter=lambda: seconds[threading.get_ident()])
    monkeypatch.setattr(disk_module, "decode", take_three_seconds)
    monkeypatch.setattr(background, "time", clock)
    for number in range(4):
        disk.save(str(number), make_chunk(number))
    store = TieredStore(host_bytes=10 * SIZE, disk=disk)

    store.prefetch({str(number): 6 for number in range(4)})
    store.close()

    # Each thread reads two chunks: its first is there after three seconds of six.
    assert [*store.speeds._loads] == pytest.approx([0.5, 0.5], rel=0.01)


def test_what_was_loaded_for_a_request_is_not_evicted_before_it_is_used(disk: DiskTier) -> None:
    now = [0.0]
    disk.save("wanted", make_chunk())
    store = TieredStore(host_bytes=2 * SIZE, disk=disk, clock=lambda: now[0])
    store.prefetch({"wanted": 6})
    eventually(lambda: "wanted" in store.memory)
    for number in range(4):
        store.put(str(number), make_chunk(number, compute_s=9.0))
    assert "wanted" in store.memory
    now[0] = 100.0
    for number in range(4, 8):
        store.put(str(number), make_chunk(number, compute_s=9.0))
    assert "wanted" not in store.memory, "nobody came for it"
    store.close()


def test_computing_is_preferred_where_loading_would_be_slower(disk: DiskTier) -> None:
    disk.save("a", make_chunk())
    store = TieredStore(host_bytes=10 * SIZE, disk=disk, speeds=slow_disk())
    assert store.get("a") is None
    assert (store.absence(["a"]), disk.num_refused) == ("not_loaded", 0)
    store.close()


def test_a_request_waits_for_a_load_no_longer_than_computing_takes(
    disk: DiskTier, gate: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_table, "MIN_WAIT_S", 0.0)
    now, speeds = [0.0], Speeds()
    speeds.computed(6, 3.0)
    disk.save("a", make_chunk())
    store = TieredStore(
        host_bytes=10 * SIZE, disk=disk, speeds=speeds, waits=False, clock=lambda: now[0]
    )
    assert not store.is_loading(["a"])
    store.prefetch({"a": 6})
    assert store.is_loading(["b", "a"])
    assert store.get("a") is None  # returns although no chunk can be read yet
    now[0] = 3.5
    assert not store.is_loading(["a"])
    gate.release()
    eventually(lambda: "a" in store.memory)
    assert same(store.get("a"), make_chunk())
    store.close()


def test_a_broken_file_is_a_miss_and_the_chunk_can_be_stored_again(disk: DiskTier) -> None:
    disk.save("a", make_chunk())
    path = disk.directory / "a.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    store = TieredStore(host_bytes=10 * SIZE, disk=disk)
    assert store.get("a") is None
    assert "a" not in store
    store.put("a", make_chunk())
    assert same(store.get("a"), make_chunk())
    store.close()


def test_storing_a_chunk_replaces_a_broken_file_and_keeps_a_whole_one(disk: DiskTier) -> None:
    for key in ("broken", "whole"):
        disk.save(key, make_chunk(1))
    path = disk.directory / "broken.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    store = TieredStore(host_bytes=10 * SIZE, disk=disk)

    assert store.put("broken", make_chunk(2))
    assert store.put("whole", make_chunk(2))
    store.close()

    assert same(disk.load("broken"), make_chunk(2))
    assert same(disk.load("whole"), make_chunk(1))
    assert disk.num_refused == 1


def test_many_threads_get_only_what_was_put(disk: DiskTier) -> None:
    store = TieredStore(host_bytes=3 * SIZE, disk=disk)

    def work(thread: int) -> int:
        wrong = 0
        for turn in range(40):
            number = (turn * (thread + 3)) % 9
            if turn % 7 == thread:
                store.discard(str(number))
            if turn % 5 == 0:
                store.prefetch({str(number): 6, str(number + 1): 6})
            chunk = store.get(str(number))
            if chunk is None:
                store.put(str(number), make_chunk(number))
            else:
                wrong += not same(chunk, make_chunk(number))
        return wrong

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4))) == [0] * 4
    check_store(store)
    store.close()


@pytest.mark.parametrize("policy", ["reuse", "gradual"])
def test_an_answer_from_disk_is_the_answer_from_memory(
    adapter: ModelAdapter, disk: DiskTier, policy: str
) -> None:
    system, chunks, question = make_prompt()
    memory = ChunkReuse(adapter, TieredStore())
    memory.precompute(system, chunks)
    expected = memory.prefill(system, chunks, question, policy=policy, ratio=0.3)
    first = TieredStore(host_bytes=1 << 24, disk=disk)
    ChunkReuse(adapter, first).precompute(system, chunks)
    first.close()
    store = TieredStore(host_bytes=1 << 24, disk=disk)

    reuse = ChunkReuse(adapter, store)
    result = reuse.prefill(system, chunks, question, policy=policy, ratio=0.3)

    assert torch.equal(result.logits, expected.logits)
    assert result.selected == expected.selected
    assert reuse.library.misses.total() == 0
    store.close()


def test_kv_of_another_model_is_never_used(disk: DiskTier) -> None:
    """Its key is another one; and a file that is renamed to the right one is refused."""
    system, chunks, question = make_prompt()
    one, other = (build_adapter(name) for name in ("qwen3-qk-norm", "llama"))
    store = TieredStore(host_bytes=1 << 24, disk=disk)
    reuse = {name: ChunkReuse(a, store) for name, a in (("one", one), ("other", other))}
    reuse["one"].precompute(system, chunks)
    store.flush()
    assert stored_kv(reuse["other"], chunks[0]) is None
    wrong = reuse["other"].library.key(chunks[0])
    path = disk.directory / f"{reuse['one'].library.key(chunks[0])}.safetensors"
    path.rename(disk.directory / f"{wrong}.safetensors")

    result = reuse["other"].prefill(system, chunks, question, policy="reuse")

    assert result.counts.reused == 0
    assert disk.num_refused == 1
    store.close()


def test_a_chunk_without_a_measured_cost_is_kept_too() -> None:
    store = TieredStore(host_bytes=2 * SIZE)
    chunk: ChunkKV = make_chunk(compute_s=None)
    assert store.put("a", chunk)
    assert store.get("a") is chunk
    assert store.speeds.compute_s(1) is None


def test_the_version_tells_of_what_leaves_the_disk(disk: DiskTier) -> None:
    with closing(TieredStore(disk=disk)) as before:
        for key in ("a", "b", "broken"):
            before.put(key, make_chunk())
    path = disk.directory / "broken.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with closing(TieredStore(disk=disk)) as store:  # nothing is in memory
        versions = [store.version]
        store.discard("a")
        versions.append(store.version)
        assert store.get("broken") is None
        versions.append(store.version)
        store.clear()
        versions.append(store.version)
    assert versions == sorted(set(versions))


def test_the_version_tells_of_kv_that_could_not_be_written(disk: DiskTier) -> None:
    with closing(TieredStore(disk=disk, host_bytes=1)) as store, files_of_at_most(1):
        store.put("a", make_chunk())
        before = store.version
        store.flush()
        assert store.get("a") is None
        assert store.version > before


def test_a_directory_that_is_gone_is_cleared(disk: DiskTier) -> None:
    with closing(TieredStore(disk=disk)) as store:
        store.put("a", make_chunk())
        store.flush()
        shutil.rmtree(disk.directory)
        store.clear()
        assert store.get("a") is None
