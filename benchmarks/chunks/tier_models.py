"""Models for the tier benchmark (timed sleep, or real computation), and disks of a given speed."""

import time
from pathlib import Path
from typing import Protocol

import torch

from benchmarks.chunks.tier_media import timed
from benchmarks.chunks.ttft import build
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.store.chunk import KV, ChunkKV
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.files import ChunkFile
from ragboost.chunk_cache.store.tiered import TieredStore

SYSTEM, CHUNK, QUESTION, CHUNKS = 32, 96, 32, 8
POLICY = "epic"  # selects without reading KV, so that only loading and computing are measured


class SlowFile(ChunkFile):
    """Chunk file that takes at least `layer_s` seconds to load a layer."""

    layer_s = 0.0

    def read_layer(self, number: int) -> KV:
        begin = time.perf_counter()
        layer = super().read_layer(number)
        time.sleep(max(0.0, self.layer_s - (time.perf_counter() - begin)))
        return layer


class SlowDisk(DiskTier):
    """Disk tier whose files take at least `layer_s` seconds per layer of a chunk."""

    layer_s = 0.0

    def open(self, key: str) -> ChunkFile | None:
        file = super().open(key)
        if file is None:
            return None
        file.close()
        slow = SlowFile(self.directory / f"{key}.safetensors", key)
        slow.layer_s = self.layer_s
        return slow


class Bench(Protocol):
    """Model and requests whose chunks are all on disk."""

    num_layers: int
    num_requests: int
    prefill_s: float  # time to first token with all KV in memory
    disk: SlowDisk

    def keys(self, number: int) -> list[str]:
        """Return the keys of a request's chunks."""
        ...

    def run(self, store: TieredStore, number: int) -> None:
        """Run the prefill of one request."""
        ...


class Clockwork:
    """`Bench` whose layers take a constant time on any machine.

    Stores, threads, files and checksums are the real ones.
    """

    num_layers = 16

    def __init__(self, directory: Path, *, num_requests: int, prefill_s: float) -> None:
        self.num_requests, self.prefill_s = num_requests, prefill_s
        self.disk = SlowDisk(directory / "chunks", capacity_bytes=1 << 33)
        layers = tuple(
            (torch.randn(1, 2, CHUNK, 64), torch.randn(1, 2, CHUNK, 64))
            for _ in range(self.num_layers)
        )
        for number in range(num_requests):
            for key in self.keys(number):
                self.disk.save(key, ChunkKV(tuple(range(CHUNK)), 0, layers, "r", CHUNK))

    def keys(self, number: int) -> list[str]:
        return [f"{number}-{chunk}" for chunk in range(CHUNKS + 1)]

    def run(self, store: TieredStore, number: int) -> None:
        found = [store.get(key) for key in self.keys(number)]
        begin = time.perf_counter()
        waited = 0.0
        for layer in range(self.num_layers):
            asked = time.perf_counter()
            for chunk in found:
                assert chunk is not None, "it is on disk"
                _ = chunk.layers[layer]
            waited += time.perf_counter() - asked
            done = begin + waited + (layer + 1) * self.prefill_s / self.num_layers
            time.sleep(max(0.0, done - time.perf_counter()))


class Model:
    """`Bench` with a real model; `full_s` is its time to first token without any stored KV."""

    def __init__(self, directory: Path, *, num_requests: int, ratio: float) -> None:
        self.adapter = build("small", layers=8, device="cpu")
        self.ratio = ratio
        self.num_layers, self.num_requests = self.adapter.num_layers, num_requests
        generator = torch.Generator().manual_seed(0)

        def draw(length: int) -> list[int]:
            ids: list[int] = torch.randint(8192, (length,), generator=generator).tolist()
            return ids

        self.system = draw(SYSTEM)
        self.prompts = [
            ([draw(CHUNK) for _ in range(CHUNKS)], draw(QUESTION)) for _ in range(num_requests)
        ]
        self.disk = SlowDisk(directory / "chunks", capacity_bytes=1 << 33)
        store = TieredStore(host_bytes=1 << 33, disk=self.disk)
        self.reuse = ChunkReuse(self.adapter, store)
        for chunks, _ in self.prompts:
            self.reuse.precompute(self.system, chunks)
        store.close()
        self.prefill_s = timed(lambda: self.run(store, 0))
        self.full_s = timed(lambda: self.run(TieredStore(host_bytes=1), 0))

    def keys(self, number: int) -> list[str]:
        chunks, _ = self.prompts[number]
        return [self.reuse.library.key(tokens) for tokens in (self.system, *chunks)]

    def run(self, store: TieredStore, number: int) -> None:
        chunks, question = self.prompts[number]
        reuse = ChunkReuse(self.adapter, store, identity=self.reuse.library.identity)
        reuse.prefill(self.system, chunks, question, policy=POLICY, ratio=self.ratio)
