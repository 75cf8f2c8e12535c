"""Chunk KV on an accelerator, in host memory, on disk and in a remote store, as one `KVStore`. What
is used often, or dear for its size, stays in fast memory; all is written elsewhere in the
background and comes back when a request needs it."""

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice

import torch

from ragboost.chunk_cache.eviction.heat import Heat
from ragboost.chunk_cache.eviction.policy import EvictionPolicy
from ragboost.chunk_cache.store.background import WRITE_BEHIND_BYTES, BackgroundTier, ChunkLoad
from ragboost.chunk_cache.store.chunk import ChunkKV, Origin
from ragboost.chunk_cache.store.contract import ChunkTier, TierStats
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.memory import MemoryTier
from ragboost.chunk_cache.store.speeds import Speeds
from ragboost.util.bounded_map import BoundedMap

MIN_WAIT_S, MAX_WAIT_S = 0.05, 5.0
"""Bounds of the time for which a request waits for its chunks: as long as computing those that have
not arrived would take, since the last one has; the greatest while that is not known."""
MISS_S = 1.0
"""Seconds for which a chunk that was nowhere is not looked for again."""
CLOSE_S = 30.0
"""Seconds that writing what is only in memory may take at the end; the rest is lost."""
_MAX_MISSED = 1 << 16
_MAX_LOADS = 1 << 14  # chunks on their way; more are computed


class TieredStore:
    """A `KVStore` of several places, safe to use from several threads; processes may share a
    disk or a remote store. Without either, evicted KV is dropped. If it `waits`, `get` waits
    until KV is loaded; in an engine nothing may wait: there `get` looks in memory, where
    `prefetch` brings KV."""

    def __init__(
        self,
        *,
        host_bytes: int = 1 << 30,
        disk: DiskTier | None = None,
        remote: ChunkTier | None = None,
        accelerator_bytes: int = 0,
        device: torch.device | str = "cpu",
        speeds: Speeds | None = None,
        write_bytes: int = WRITE_BEHIND_BYTES,
        waits: bool = True,
        make_policy: Callable[[], EvictionPolicy] = Heat,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.disk, self.knows_all = disk, remote is None
        self.speeds = speeds or Speeds()
        self._device, self._waits, self._clock = torch.device(device), waits, clock
        places = [(accelerator_bytes, self._device)] if accelerator_bytes else []
        self.memory = [
            MemoryTier(
                capacity_bytes=size,
                device=place,
                policy=make_policy(),
                clock=clock,
                on_evict=partial(self._demote, number),
            )
            for number, (size, place) in enumerate([*places, (host_bytes, torch.device("cpu"))])
        ]
        self._lock = threading.RLock()
        self._load_ended = threading.Condition(self._lock)
        self._loads: dict[str, ChunkLoad] = {}
        self._missed: BoundedMap[str, float] = BoundedMap(max_entries=_MAX_MISSED)  # until when
        self._tiers: list[BackgroundTier] = []
        if disk is not None:
            self._add_tier(disk, "disk", self.speeds, write_bytes, known=disk.keys())
        if remote is not None:
            self._add_tier(remote, "remote", Speeds(), write_bytes)

    def _add_tier(
        self,
        tier: ChunkTier,
        name: str,
        speeds: Speeds,
        write_bytes: int,
        *,
        known: Iterable[str] = (),
    ) -> None:
        done = partial(self._loaded, len(self._tiers))
        self._tiers.append(
            BackgroundTier(
                tier,
                name=name,
                known=known,
                write_bytes=write_bytes,
                speeds=speeds,
                done=done,
                find=self._peek,
                clock=self._clock,
            )
        )

    def __contains__(self, key: str) -> bool:
        with self._lock:
            if any(key in tier for tier in self.memory):
                return True
        return any(key in tier for tier in self._tiers)

    @property
    def version(self) -> int:
        with self._lock:
            in_memory = sum(tier.version for tier in self.memory)
        return in_memory + sum(tier.version for tier in self._tiers)

    def get(self, key: str) -> ChunkKV | None:
        with self._lock:
            chunk = self._from_memory(key)
        if chunk is None and self._waits:
            chunk = self._await(key)
        return None if chunk is None else chunk.to(self._device)

    def origin(self, key: str) -> Origin | None:
        if (chunk := self._peek(key)) is not None:
            return chunk.origin
        found = (tier.origin(key) for tier in self._tiers)
        return next((origin for origin in found if origin is not None), None)

    def absence(self, keys: Sequence[str]) -> str:
        with self._lock:
            if any(key in self._loads for key in keys):
                return "loading"
        return "not_loaded" if any(key in self for key in keys) else "absent"

    def put(self, key: str, chunk: ChunkKV) -> bool:
        """Store KV and note the speed of computing it. A broken file is replaced."""
        if chunk.compute_s is not None:
            for tier in self._tiers:
                tier.speeds.computed(len(chunk.tokens), chunk.compute_s)
        with self._lock:
            self._missed.pop(key)
            if self._from_memory(key) is not None:
                return True
            is_kept = self._place(key, chunk)
        written = [tier.write(key, chunk) for tier in self._tiers]
        return is_kept or any(written)

    def replace(self, key: str, chunk: ChunkKV) -> None:
        if key not in self:
            return
        with self._lock:
            if not any(key in tier for tier in self.memory):
                self._place(key, chunk)
            for tier in self.memory:
                if key in tier and not tier.save(key, chunk):
                    tier.remove(key)
        for place in self._tiers:
            place.write(key, chunk, is_new=True)

    def discard(self, key: str) -> None:
        self.forget([key])
        for tier in self._tiers:
            tier.remove(key)

    def forget(self, keys: Sequence[str] | None = None) -> None:
        """Remove KV from memory only; None: all of it."""
        with self._lock:
            for key in [*self._loads] if keys is None else keys:
                if key in self._loads:
                    self._loads.pop(key).is_cancelled = True
            for tier in self.memory:
                for key in [key for key, _ in tier.items()] if keys is None else keys:
                    tier.remove(key)

    def prefetch(self, chunks: Mapping[str, int]) -> None:
        """Start loading what is not in memory; until used it stays, `PIN_S` at most."""
        if not self._tiers:
            return
        with self._lock:
            now = self._clock()
            missing = {
                key: num_tokens
                for key, num_tokens in chunks.items()
                if key not in self._loads
                and not self._is_in_memory(key)
                and now >= (self._missed.peek(key) or -math.inf)
            }
            room = _MAX_LOADS - len(self._loads)
            if missing and room > 0:
                self._start(dict(islice(missing.items(), room)))

    def is_loading(self, keys: Sequence[str]) -> bool:
        now = self._clock()
        with self._lock:
            loads = [self._loads[key] for key in keys if key in self._loads]
            return any(now < load.wait_until for load in loads)

    def is_on_its_way(self, key: str) -> bool:
        """Return True while KV is loaded, whether or not a request should wait for it."""
        with self._lock:
            return key in self._loads

    def wait_for_load(self, *, timeout_s: float) -> None:
        """Wait until one of the loads under way has ended, if there are any."""
        with self._lock:
            if self._loads:
                self._load_ended.wait(timeout_s)

    def clear(self) -> None:
        with self._lock:  # no load may begin in between
            self.forget()
            for tier in self._tiers:
                tier.clear()

    def keys(self, prefix: str) -> set[str]:
        with self._lock:
            keys = [key for tier in self.memory for key, _ in tier.items()]
        for place in self._tiers:
            keys += place.keys()
        return {key for key in keys if key.startswith(prefix)}

    def places(self, key: str) -> list[str]:
        """Return where KV is, also where it is only to be removed from."""
        found = [name for name, tier in self._named_memory() if key in tier]
        return found + [tier.name for tier in self._tiers if tier.holds(key)]

    def stats(self) -> list[TierStats]:
        """Return what each place holds and has done, without asking it."""
        with self._lock:
            found = [
                TierStats(name, len(tier), tier.size_bytes, tier.capacity_bytes, tier.num_evicted)
                for name, tier in self._named_memory()
            ]
        return [*found, *(tier.stats() for tier in self._tiers)]

    def keep(self, key: str) -> bool:
        with self._lock:
            return any(tier.keep(key) for tier in self.memory)

    def release(self, key: str) -> None:
        with self._lock:
            for tier in self.memory:
                tier.release(key)

    def is_kept(self, key: str) -> bool:
        with self._lock:
            return any(tier.is_kept(key) for tier in self.memory)

    def _named_memory(self) -> Iterable[tuple[str, MemoryTier]]:
        return zip(["accelerator", "memory"][-len(self.memory) :], self.memory, strict=True)

    def flush(self, *, until: float = math.inf) -> None:
        """Write all KV in memory elsewhere, as far as it fits and the places answer."""
        with self._lock:
            everything = {key: chunk for tier in self.memory for key, chunk in tier.items()}
        for tier in self._tiers:
            for key, chunk in everything.items():
                if key not in tier and not tier.write(key, chunk):
                    if not tier.drain(until=until):
                        break
                    tier.write(key, chunk)
            tier.drain(until=until)

    def close(self) -> None:
        until = self._clock() + CLOSE_S
        self.flush(until=until)
        for tier in self._tiers:
            tier.close(until=until)

    def check_integrity(self) -> None:
        with self._lock:
            for tier in self.memory:
                tier.check_integrity()

    def _is_in_memory(self, key: str) -> bool:
        return any(key in tier for tier in self.memory) or any(
            tier.unwritten(key) is not None for tier in self._tiers
        )

    def _peek(self, key: str) -> ChunkKV | None:
        with self._lock:
            found = (tier.peek(key) for tier in self.memory)
            return next((chunk for chunk in found if chunk is not None), None)

    def _from_memory(self, key: str) -> ChunkKV | None:
        for number, tier in enumerate(self.memory):
            chunk = tier.load(key)
            if chunk is not None:
                if number > 0:  # promote it, demoting the KV that it displaces
                    self.memory[0].save(key, chunk)
                return chunk
        unwritten = (tier.unwritten(key) for tier in self._tiers)
        return next((chunk for chunk in unwritten if chunk is not None), None)

    def _place(self, key: str, chunk: ChunkKV, *, is_pinned: bool = False) -> bool:
        return any(tier.save(key, chunk, is_pinned=is_pinned) for tier in self.memory)

    def _demote(self, number: int, key: str, chunk: ChunkKV) -> None:
        """Move evicted KV to the next memory, and from the last one elsewhere."""
        below = self.memory[number + 1 :]
        if any(key in tier for tier in below):
            return
        if below:
            below[0].save(key, chunk)
            return
        for tier in self._tiers:
            if key not in tier:
                tier.write(key, chunk)

    def _start(self, chunks: Mapping[str, int]) -> None:
        now = self._clock()
        until = now + self._wait_s(sum(chunks.values()))
        loads = [
            ChunkLoad(key, count, beside=chunks.keys(), wait_until=until, latest=now + MAX_WAIT_S)
            for key, count in chunks.items()
        ]
        self._loads.update((load.key, load) for load in loads)
        self._ask(loads, 0)

    def _wait_s(self, num_tokens: int) -> float:
        compute_s = self._tiers[0].speeds.compute_s(num_tokens)
        return MAX_WAIT_S if compute_s is None else min(MAX_WAIT_S, max(MIN_WAIT_S, compute_s))

    def _prolong(self, keys: Collection[str]) -> None:
        """After one more has arrived, let requests wait for what is left for as long as computing
        that takes from now on."""
        now = self._clock()
        loads = [self._loads[key] for key in keys if key in self._loads]
        left = [load for load in loads if now < load.wait_until]
        until = now + self._wait_s(sum(load.num_tokens for load in left))
        for load in left:
            load.wait_until = min(load.latest, max(load.wait_until, until))

    def _ask(self, loads: Sequence[ChunkLoad], first: int) -> None:
        """Load chunks from the first place from number `first` on that is worth it and answers."""
        for tier in self._tiers[first:]:
            is_trusted = tier.is_trusted
            if not tier.speeds.is_worth_loading():
                tier.count("slower", len(loads))
            elif tier.load(loads):
                for load in loads if not is_trusted else ():
                    load.wait_until = -math.inf  # is it fine again? Nobody waits for the answer
                return
            else:
                tier.count("unavailable", len(loads))
        for load in loads:
            self._end(load, None)

    def _loaded(self, number: int, load: ChunkLoad, chunk: ChunkKV | None) -> None:
        """Store a loaded chunk, or ask the place after `number`. Called in a loading thread."""
        if chunk is None and not load.is_cancelled:
            self._ask([load], number + 1)
        else:
            self._end(load, chunk)

    def _end(self, load: ChunkLoad, chunk: ChunkKV | None) -> None:
        with self._lock:
            if self._loads.get(load.key) is load:
                del self._loads[load.key]
                is_there = any(load.key in tier for tier in self.memory)
                if chunk is not None and not is_there:
                    is_there = self._place(load.key, chunk, is_pinned=True)
                if not is_there:
                    self._missed.put(load.key, self._clock() + MISS_S)
                elif chunk is not None:
                    self._prolong(load.beside)
            self._load_ended.notify_all()
        load.end(chunk)

    def _await(self, key: str) -> ChunkKV | None:
        with self._lock:
            load = self._loads.get(key)
            if load is None and self._tiers:
                self._start({key: 0})
                load = self._loads.get(key)
        while load is not None and not load.has_ended.wait(0.1):
            if not any(tier.is_available for tier in self._tiers):
                return None
        return None if load is None else load.chunk
