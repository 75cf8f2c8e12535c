"""Measure read and durable write throughput of chunk KV in MiB/s, with checksums.

    python -m benchmarks.chunks.tiers --only media

Compares RAGBoost's files, a memory map of the same file, and LMDB if it is installed.
"""

import os
import statistics
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.disk import DiskTier

MIB = 1 << 20


def timed(run: Callable[[], Any], *, before: Callable[[], Any] = lambda: None) -> float:
    """Return the median seconds of seven runs."""
    times = []
    for _ in range(7):
        before()
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def media(directory: Path) -> dict[str, Any]:
    """Return MiB/s of reading one chunk into its own memory, and of storing it durably."""
    layers = tuple((torch.randn(1, 8, 256, 128), torch.randn(1, 8, 256, 128)) for _ in range(8))
    chunk = ChunkKV(tuple(range(256)), 0, layers, "r", 256)
    tier = DiskTier(directory / "media", capacity_bytes=1 << 30)
    tier.save("chunk", chunk)
    path = tier.directory / "chunk.safetensors"
    size = path.stat().st_size / MIB

    def drop_pages() -> None:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def mapped() -> None:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # no mapping
                zlib.crc32(file.get_tensor(name).clone().flatten().view(torch.uint8).numpy())

    result: dict[str, Any] = {"chunk_mib": round(size, 1)}
    reads = {"ours": lambda: tier.load("chunk"), "memory map": mapped}
    for name, read in reads.items():
        result[f"read, {name}"] = round(size / timed(read))
        result[f"read after dropping pages, {name}"] = round(size / timed(read, before=drop_pages))
    result["write, ours"] = round(size / timed(lambda: tier.save("chunk", chunk)))
    result.update(lmdb_media(directory, path.read_bytes()))
    return result


def lmdb_media(directory: Path, data: bytes) -> dict[str, float]:
    """Return the same for LMDB with default durability, one value per chunk; empty if missing."""
    try:
        import lmdb
    except ModuleNotFoundError:
        return {}
    environment = lmdb.open(str(directory / "lmdb"), map_size=1 << 30)
    size = len(data) / MIB

    def write() -> None:
        with environment.begin(write=True) as transaction:
            transaction.put(b"chunk", data)

    def read() -> None:
        with environment.begin(buffers=True) as transaction:
            zlib.crc32(bytearray(transaction.get(b"chunk")))

    result = {"write, LMDB": round(size / timed(write))}
    result["read, LMDB"] = round(size / timed(read))
    environment.close()
    return result
