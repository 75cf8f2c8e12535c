"""What loading chunk KV costs, and what hides it.

    python -m benchmarks.tiers --json

`media`: reading and checking a chunk of 16 MiB as our files do it, by a memory map of the same
file, and by LMDB where it is installed; pages in memory, and dropped; and writing it durably.
`layerwise`: one request whose KV is on disk alone, by how long loading takes compared with
prefilling. Slower disks than this machine's are made by waiting after each layer; the model is
clockwork (0.4 s a prefill) but for `--real`. `ttft_ratio` is to KV in memory; `wait_share` what the
model waits for layers after it has begun.
`queue`: requests that arrive together, each with KV on disk; mean time to first token.
`storage`: 1,000 requests with 60 % known, 30 % shared and 10 % unique chunks (FusionRAG 5.3.3):
KV stored and computed by a plain prefix cache and by chunks with exact and context-free keys.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from safetensors import safe_open

from benchmarks.chunk_ttft import build
from ragboost.chunk_cache.reuse import ChunkReuse
from ragboost.chunk_cache.store import ChunkKV
from ragboost.chunk_cache.tiers.codec import KV
from ragboost.chunk_cache.tiers.disk import DiskTier
from ragboost.chunk_cache.tiers.files import ChunkFile
from ragboost.chunk_cache.tiers.speeds import preload_depth
from ragboost.chunk_cache.tiers.store import TieredStore

SYSTEM, CHUNK, QUESTION, CHUNKS = 32, 96, 32, 8
POLICY = "epic"  # chooses without looking at KV, so that only loading and computing are measured
MIB = 1 << 20


class SlowFile(ChunkFile):
    """A file on a disk of so many seconds a layer."""

    layer_s = 0.0

    def read_layer(self, number: int) -> KV:
        begin = time.perf_counter()
        layer = super().read_layer(number)
        time.sleep(max(0.0, self.layer_s - (time.perf_counter() - begin)))
        return layer


class SlowDisk(DiskTier):
    """A disk whose files load in so many seconds a layer of a chunk; 0: as fast as it goes."""

    layer_s = 0.0

    def open(self, key: str) -> ChunkFile | None:
        file = super().open(key)
        if file is None:
            return None
        file.close()
        slow = SlowFile(self.directory / f"{key}.safetensors", key)
        slow.layer_s = self.layer_s
        return slow


def timed(run: Callable[[], Any], *, before: Callable[[], Any] = lambda: None) -> float:
    """Median seconds of seven runs."""
    times = []
    for _ in range(7):
        before()
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def media(directory: Path) -> dict[str, Any]:
    """MiB/s of reading one chunk to memory of its own, and of storing it durably."""
    layers = tuple((torch.randn(1, 8, 256, 128), torch.randn(1, 8, 256, 128)) for _ in range(8))
    chunk = ChunkKV(tuple(range(256)), 0, layers, "r", 256)
    tier = DiskTier(directory / "media", capacity_bytes=1 << 30)
    tier.save("chunk", chunk)
    path = tier.directory / "chunk.safetensors"
    size = path.stat().st_size / MIB

    def forget() -> None:
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
        result[f"read after dropping pages, {name}"] = round(size / timed(read, before=forget))
    result["write, ours"] = round(size / timed(lambda: tier.save("chunk", chunk)))
    result.update(lmdb_media(directory, path.read_bytes()))
    return result


def lmdb_media(directory: Path, data: bytes) -> dict[str, float]:
    """The same by LMDB, if it is there: one value a chunk, its default durability."""
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


class Bench(Protocol):
    """Requests whose chunks are all on disk.

    Attributes:
        num_layers: of the model.
        num_requests: that there are.
        prefill_s: time to first token with all KV in memory.
        disk: where KV is.
    """

    num_layers: int
    num_requests: int
    prefill_s: float
    disk: SlowDisk

    def keys(self, number: int) -> list[str]:
        """What a request will ask for."""
        ...

    def run(self, store: TieredStore, number: int) -> None:
        """Answer one request."""
        ...


class Clockwork:
    """A model that takes the same time for every layer, whatever else the machine does; see
    `Bench`. Stores, threads, files and checks are the real ones."""

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
        """See `Bench`."""
        return [f"{number}-{chunk}" for chunk in range(CHUNKS + 1)]

    def run(self, store: TieredStore, number: int) -> None:
        """See `Bench`."""
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
    """A real model; see `Bench`.

    Attributes:
        full_s: time to first token without any stored KV.
    """

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
        """See `Bench`."""
        chunks, _ = self.prompts[number]
        key = self.reuse.chunks.key
        return [key((), self.system), *(key(self.system, chunk) for chunk in chunks)]

    def run(self, store: TieredStore, number: int) -> None:
        """See `Bench`."""
        chunks, question = self.prompts[number]
        reuse = ChunkReuse(self.adapter, store, identity=self.reuse.identity)
        reuse.prefill(self.system, chunks, question, policy=POLICY, ratio=self.ratio)


def new_store(bench: Bench, *, load_s: float, is_layerwise: bool) -> TieredStore:
    """Return an empty store over the disk, which takes so long for the KV of one request."""
    bench.disk.layer_s = load_s / (bench.num_layers * (CHUNKS + 1))
    return TieredStore(host_bytes=1 << 33, disk=bench.disk, is_layerwise=is_layerwise)


def one_request(bench: Bench, *, load_s: float, arm: str) -> dict[str, float]:
    """Time to first token of a request that nobody announced."""
    store = new_store(bench, load_s=load_s, is_layerwise=arm != "all layers first")
    depth = {
        "all layers first": bench.num_layers,
        "one layer first": 1,
        "eq. 16": preload_depth(bench.num_layers, prefill_s=bench.prefill_s, load_s=load_s),
    }[arm]
    begin = time.perf_counter()
    keys = bench.keys(0)
    store.prefetch(keys)
    for key in keys:
        chunk = store.get(key)
        assert chunk is not None, "it is on disk"
        if arm != "all layers first":
            chunk.layers[depth - 1]  # waits until so many layers are there
    started = time.perf_counter()
    bench.run(store, 0)
    done = time.perf_counter()
    store.close()
    return {"depth": depth, "ttft_s": done - begin, "compute_s": done - started}


def layerwise(bench: Bench, repeats: int) -> list[dict[str, Any]]:
    """One request by how long loading takes, in shares of prefilling."""
    rows = []
    for ratio in (0.5, 1.0, 2.0, 4.0):
        load_s = ratio * bench.prefill_s
        runs: dict[str, list[dict[str, float]]] = {}
        for _ in range(repeats):
            for arm in ("all layers first", "one layer first", "eq. 16"):
                runs.setdefault(arm, []).append(one_request(bench, load_s=load_s, arm=arm))
        for arm, measured in runs.items():
            median = {k: statistics.median(r[k] for r in measured) for k in measured[0]}
            rows.append(
                {
                    "load_to_prefill": ratio,
                    "arm": arm,
                    "layers_first": int(median["depth"]),
                    "ttft_ratio": round(median["ttft_s"] / bench.prefill_s, 2),
                    "wait_share": round(median["compute_s"] / bench.prefill_s - 1, 2),
                }
            )
    return rows


def queued(bench: Bench, *, load_s: float, arm: str) -> float:
    """Mean time to first token of requests that arrive together and are served one by one."""
    store = new_store(bench, load_s=load_s, is_layerwise=arm == "asynchronous, layer-wise")
    if arm == "in memory":
        for number in range(bench.num_requests):
            for key in bench.keys(number):
                assert store.get(key) is not None, "it is on disk"
    begin = time.perf_counter()
    if arm.startswith("asynchronous"):
        for number in range(bench.num_requests):
            store.prefetch(bench.keys(number))
    times = []
    for number in range(bench.num_requests):
        if arm == "synchronous":
            store.prefetch(bench.keys(number))  # all at once, as it comes to its turn
        bench.run(store, number)
        times.append(time.perf_counter() - begin)
    store.close()
    return statistics.mean(times)


def queue(bench: Bench, repeats: int) -> list[dict[str, Any]]:
    """Requests that arrive together, by how long loading takes."""
    rows = []
    arms = ("in memory", "synchronous", "asynchronous", "asynchronous, layer-wise")
    for ratio in (0.5, 1.0, 2.0):
        runs: dict[str, list[float]] = {}
        for _ in range(repeats):
            for arm in arms:
                load_s = 0.0 if arm == "in memory" else ratio * bench.prefill_s
                runs.setdefault(arm, []).append(queued(bench, load_s=load_s, arm=arm))
        mean = {arm: statistics.median(values) for arm, values in runs.items()}
        cost = mean["synchronous"] - mean["in memory"]
        rows += [
            {
                "load_to_prefill": ratio,
                "arm": arm,
                "mean_ttft_ratio": round(mean[arm] / mean["in memory"], 2),
                "hidden_share": round((mean["synchronous"] - mean[arm]) / cost, 2),
            }
            for arm in arms
        ]
    return rows


def storage(seed: int, *, per_request: int = 5, ratio: float = 0.15) -> dict[str, float]:
    """Count KV of 1,000 requests, in chunks of equal length, nothing evicted.

    Known chunks: 1,000, in the knowledge base beforehand; shared ones: 300, uploaded when they are
    first used; both by a Zipf law (exponent 1). The paper says neither how many there are nor how
    they are drawn.
    """
    rng = np.random.default_rng(seed)
    pools = {"known": 1000, "shared": 300}
    weights = {name: 1 / np.arange(1, size + 1) for name, size in pools.items()}
    chains: set[tuple[Any, ...]] = set()
    chunks: set[Any] = {("known", i) for i in range(pools["known"])}
    used: set[Any] = set()
    num_uses = prefix_computed = computed = exact = 0
    for request in range(1000):
        chain: tuple[Any, ...] = ()
        for place in range(per_request):
            kind = rng.choice(["known", "shared", "unique"], p=[0.6, 0.3, 0.1])
            if kind == "unique":
                chunk = (kind, (request, place))
            else:
                p = weights[kind] / weights[kind].sum()
                chunk = (kind, int(rng.choice(pools[kind], p=p)))
            if chunk in chain:
                continue
            chain = (*chain, chunk)
            num_uses += 1
            used.add(chunk)
            if chain in chains:
                exact += 1
            else:
                chains.add(chain)
                prefix_computed += 1
            if chunk not in chunks:
                chunks.add(chunk)
                computed += 1
    redundant = prefix_computed - len(used)
    reused = num_uses - computed
    # Of what is reused behind another prefix, `ratio` of the tokens are computed again.
    work = computed + ratio * (reused - exact)
    return {
        "uses": num_uses,
        "prefix_cache_chunks_stored": len(chains),
        "prefix_cache_redundant_computations": redundant,
        "chunks_stored": len(chunks),
        "storage_saved": round(1 - len(chunks) / len(chains), 3),
        "storage_saved_of_used": round(1 - len(used) / len(chains), 3),
        "context_free_hit_rate": round(reused / num_uses, 3),
        "recomputation_saved": round(1 - work / prefix_computed, 3),
        "recomputation_saved_ratio_0": round(1 - computed / prefix_computed, 3),
    }


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print a table."""
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=6, help="that arrive together")
    parser.add_argument("--ratio", type=float, default=0.15, help="tokens to compute again")
    parser.add_argument("--real", action="store_true", help="compute with a real model")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=("media", "layerwise", "queue", "storage"))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the other core loads
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        if args.only in (None, "media"):
            result["media_mib_s"] = media(Path(name))
        if args.only in (None, "storage"):
            result["storage"] = [{"seed": seed, **storage(seed)} for seed in range(3)]
        if args.only in (None, "layerwise", "queue"):
            bench: Bench
            if args.real:
                bench = model = Model(Path(name), num_requests=args.requests, ratio=args.ratio)
                result["full_prefill_ms"] = round(1000 * model.full_s)
            else:
                bench = Clockwork(Path(name), num_requests=args.requests, prefill_s=0.4)
            result["prefill_ms"] = round(1000 * bench.prefill_s)
            print(result, file=sys.stderr, flush=True)
            if args.only != "queue":
                result["layerwise"] = layerwise(bench, args.repeats)
            if args.only != "layerwise":
                result["queue"] = queue(bench, args.repeats)
    if args.json:
        print(json.dumps(result))
        return
    for title, rows in result.items():
        if isinstance(rows, list):
            show(title, rows)
        else:
            print(title, rows)


if __name__ == "__main__":
    main()
