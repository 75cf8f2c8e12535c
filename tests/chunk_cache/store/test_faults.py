"""Whatever happens to the files of a store, requests are answered, and never over wrong KV."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.chunk_cache.families import build_adapter, make_prompt
from tests.chunk_cache.store.chunks import files_of_at_most

ROOT = Path(__file__).parents[3]
SYSTEM, CHUNKS, QUESTION = make_prompt()
DAMAGED = 2


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter("llama")


def flip(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 0x10
    return bytes(changed)


DAMAGE: dict[str, Callable[[bytes, bytes], bytes]] = {
    "empty": lambda data, other: b"",
    "cut in its header": lambda data, other: data[:100],
    "cut by one byte": lambda data, other: data[:-1],
    "longer by one byte": lambda data, other: data + b"\0",
    "no file of ours": lambda data, other: b"\0" * len(data),
    "that of another chunk": lambda data, other: other,
    "a bit of the length flipped": lambda data, other: flip(data, 0),
    "a bit of the header flipped": lambda data, other: flip(data, 300),
    "a bit of the last layer flipped": lambda data, other: flip(data, len(data) - 1),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_a_missing_chunk_and_nothing_else(
    adapter: ModelAdapter, tmp_path: Path, kind: str
) -> None:
    disk = DiskTier(tmp_path, capacity_bytes=1 << 24)
    first = TieredStore(host_bytes=1 << 24, disk=disk)
    ChunkReuse(adapter, first).precompute(SYSTEM, CHUNKS)
    first.close()
    store = TieredStore(host_bytes=1 << 24, disk=disk)
    reuse = ChunkReuse(adapter, store)
    keys = [reuse.library.key(chunk) for chunk in CHUNKS]
    paths = [tmp_path / f"{key}.safetensors" for key in keys]
    damaged = DAMAGE[kind](paths[DAMAGED].read_bytes(), paths[0].read_bytes())
    paths[DAMAGED].write_bytes(damaged)

    result = reuse.prefill(SYSTEM, CHUNKS, QUESTION, policy="reuse")

    without = ChunkReuse(adapter, TieredStore())
    without.precompute(SYSTEM, [chunk for n, chunk in enumerate(CHUNKS) if n != DAMAGED])
    expected = without.prefill(SYSTEM, CHUNKS, QUESTION, policy="reuse")
    torch.testing.assert_close(result.logits, expected.logits, atol=1e-5, rtol=1e-5)
    assert (disk.num_refused, paths[DAMAGED].exists()) == (1, False)
    reuse.precompute(SYSTEM, CHUNKS)
    again = reuse.prefill(SYSTEM, CHUNKS, QUESTION, policy="reuse")
    without.precompute(SYSTEM, CHUNKS)
    whole = without.prefill(SYSTEM, CHUNKS, QUESTION, policy="reuse")
    assert torch.equal(again.logits, whole.logits)
    store.close()


def test_requests_are_answered_while_the_disk_is_full(
    adapter: ModelAdapter, tmp_path: Path
) -> None:
    disk = DiskTier(tmp_path, capacity_bytes=1 << 24)
    store = TieredStore(host_bytes=1, disk=disk)  # nothing fits in memory
    reuse = ChunkReuse(adapter, store)
    with files_of_at_most(1000):
        reuse.precompute(SYSTEM, CHUNKS)
        store.flush()
        result = reuse.prefill(SYSTEM, CHUNKS, QUESTION, policy="reuse")
    full = ChunkReuse(adapter, TieredStore()).prefill(SYSTEM, CHUNKS, QUESTION, policy="full")
    torch.testing.assert_close(result.logits, full.logits, atol=1e-5, rtol=1e-5)
    assert disk.num_failed > 0
    assert (len(disk), disk.size_bytes) == (0, 0)
    store.close()


CAPACITY = 70_000  # some six of eight chunks


def serve(directory: Path, *, step: int) -> Iterator[bool]:
    """Answer requests for three of eight chunks for ever; says of each whether it was right."""
    adapter = build_adapter("llama")
    system, chunks, question = make_prompt(chunks=8)
    for turn in count():
        chosen = [chunks[(turn * step + i * 3) % 8] for i in range(3)]
        plain = ChunkReuse(adapter, TieredStore())
        plain.precompute(system, chosen)
        want = plain.prefill(system, chosen, question, policy="reuse")
        disk = DiskTier(directory, capacity_bytes=CAPACITY)
        store = TieredStore(host_bytes=1 << 24, disk=disk)
        reuse = ChunkReuse(adapter, store)
        reuse.precompute(system, [])
        stored = [reuse.plain(system, chunk) for chunk in chosen]  # loaded, or computed
        got = reuse.prefill(system, chosen, question, policy="reuse", stored=stored)
        store.close()
        is_bounded = disk.size_bytes <= CAPACITY
        # Close, not equal: the processes may compute with another number of threads.
        is_right = torch.allclose(got.logits, want.logits, atol=1e-4)
        yield is_right and disk.num_refused == 0 and is_bounded


def test_processes_that_share_a_store_answer_right_and_one_that_is_killed_harms_nobody(
    tmp_path: Path,
) -> None:
    program = """
        import sys
        from pathlib import Path
        from tests.chunk_cache.store.test_faults import serve
        for is_right in serve(Path(sys.argv[1]), step=5):
            print(is_right, flush=True)
    """
    other = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    mine = serve(tmp_path, step=3)
    try:
        for _ in range(8):  # in turns, and at a time
            assert other.stdout.readline() == "True\n"
            assert next(mine)
    finally:
        other.kill()
        other.communicate()
    for _ in range(8):
        assert next(mine)
    assert not list(tmp_path.glob("*.unfinished"))
