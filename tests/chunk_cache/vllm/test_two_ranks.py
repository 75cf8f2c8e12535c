"""Two ranks whose places fail, stall, lie and differ, in virtual time, while weights change in
place and caches are reset: they never disagree, use no KV of other weights, and load again once the
places are well."""

import random
import threading
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.request import TokenOrigins
from ragboost.chunk_cache.core.reusing_request import ChunkCapture
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.store import background, load_table
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.keys import Identity, tokens_digest
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.chunk_cache.vllm import catalogue
from ragboost.chunk_cache.vllm.catalogue import RankCatalogue
from ragboost.chunk_cache.vllm.data import BlockCapture, PromptFill, RankHello, RankReport, StepWork
from ragboost.errors import StoreUnavailableError
from tests.chunk_cache.store.places import Place
from tests.chunk_cache.vllm.test_worker import filler
from tests.eventually import DEADLINE_S
from tests.fakes.virtual_threads import VirtualThreads
from tests.kv_integrity import check_store

__all__ = ["filler"]

TOKENS, NUM_CHUNKS, IN_MEMORY = 16, 20, 8
KV_BYTES = 2 * 4 * TOKENS * 2
MODES = {  # of a place: seconds and failures of loads, and of the rest
    "well": ((0.005, 0.0), (0.001, 0.0)),
    "slow": ((0.5, 0.0), (0.001, 0.0)),
    "down": ((0.0, 1.0), (0.0, 1.0)),
    "times out": ((4.0, 1.0), (4.0, 1.0)),
    "hangs": ((30.0, 1.0), (30.0, 1.0)),
    "stalls": ((4.0, 1.0), (0.001, 0.0)),
    "unsteady": ((0.3, 0.3), (0.001, 0.3)),
}


@dataclass(frozen=True)
class Plan:
    request_id: str
    stored: tuple[ChunkKV | None, ...]
    stop: int
    prefix_tokens: int = 0

    def num_to_compute(self, num_layers: int) -> int:
        return 1


class TwoRanks:
    """Both call every method in the same step, each in a thread."""

    size = 2

    def __init__(self, rank: int, votes: list[bool], barrier: threading.Barrier) -> None:
        self.rank, self._votes, self._barrier = rank, votes, barrier

    def agree(self, is_fine: bool) -> bool:
        self._votes[self.rank] = is_fine
        self._barrier.wait(DEADLINE_S)
        agreed = all(self._votes)
        self._barrier.wait(DEADLINE_S)
        return agreed


class RankPlace(Place):
    """A rank's part of a store, in one of the modes."""

    def __init__(self, time: VirtualThreads, choice: random.Random) -> None:
        super().__init__()
        self._time, self._choice, self.mode = time, choice, "well"
        self.damaged = 0.0  # share of the values that are, and of those for which there is no room

    def load(self, key: str) -> ChunkKV | None:
        chunk = super().load(key)
        if self._choice.random() < self.damaged:
            self.chunks.pop(key, None)
            return None
        return chunk

    def save(self, key: str, chunk: ChunkKV) -> bool:
        self.ask("save")
        if self._choice.random() < self.damaged:
            return False
        self.chunks[key] = chunk
        return True

    def clear(self) -> None:
        """Do nothing: another engine with the old weights stores everything again at once."""
        self.ask("clear")

    def ask(self, verb: str) -> None:
        seconds, failures = MODES[self.mode][verb != "load"]
        self._time.sleep(seconds)
        if self._choice.random() < failures:
            raise StoreUnavailableError("no answer")


class World:
    """Requests, the scheduler's list, two ranks and the part of a store that each asks."""

    def __init__(self, kind: Any, time: VirtualThreads, seed: int) -> None:
        self.choice, self.time = random.Random(seed), time
        self.places = [RankPlace(time, random.Random(seed + rank)) for rank in range(2)]
        votes, barrier = [True, True], threading.Barrier(2)
        self.ranks = [kind(TwoRanks(n, votes, barrier), self.places[n], time) for n in range(2)]
        self.barrier = barrier
        settings = EngineChunkSettings(host_bytes=IN_MEMORY * KV_BYTES, remote="redis://h:1")
        self.weights = [0]
        for rank in self.ranks:
            rank.weights = self.weights
        hello = RankHello(None, 1, "r", "w0")
        self.catalogue = RankCatalogue(hello, size=2, block_size=TOKENS, settings=settings)
        self.waiting: dict[str, Any] = {}
        self.reports: list[RankReport] = []
        self.counts, self.longest = Counter[str](), 0.0
        self.orders: dict[str, PromptFill] = {}
        self.lost_share = 0.0  # of reports; as many arrive twice

    def own(self, number: int) -> list[int]:
        return [number * 1000 + place for place in range(TOKENS)]

    def arrive(self, numbers: list[int]) -> None:
        self.counts["requests"] += 1
        tokens, chunks, library = [7] * self.choice.choice([16, 32]), {}, self.catalogue.library
        for number in numbers:
            own = self.own(number)
            chunks[library.key(own)] = (len(tokens), own)
            tokens = tokens + own
        library.store.prefetch(dict.fromkeys(chunks, TOKENS))
        self.waiting[f"{self.counts['requests']}"] = (tokens, chunks, self.time.now, library)

    def reset(self) -> None:
        """Reset the caches, perhaps after the weights were changed in place."""
        self.weights[0] += self.choice.randrange(2)
        self.catalogue.forget_chunks()

    def step(self) -> None:
        work, library = StepWork(), self.catalogue.library
        for request_id, (tokens, chunks, at, its_library) in [*self.waiting.items()]:
            if its_library is not library:
                del self.waiting[request_id]
                work.num_tokens += len(tokens)
                continue
            if self.time.now - at <= 5.0 and library.store.is_loading([*chunks]):
                continue
            del self.waiting[request_id]
            found = {key: library.find(key, own) for key, (_, own) in chunks.items()}
            self.counts["hits"] += sum(kv is not None for kv in found.values())
            self.counts["chunks"] += len(found)
            blocks = [100 * int(request_id) + block for block in range(20)]
            if any(found.values()):
                plan: Any = Plan(request_id, tuple(found.values()), len(tokens))
                work.fills.append(PromptFill(request_id, plan, blocks))
            for number, (key, (start, _)) in enumerate(chunks.items()):
                if found[key] is None:
                    prompt = tokens[: start + TOKENS]
                    chunk = ChunkCapture(key, prompt, start, number == 0, number == 0)
                    work.captures.append(BlockCapture(request_id, chunk, blocks))
            work.num_tokens += len(tokens)
        self.orders.update((fill.request_id, fill) for fill in work.fills)
        work.rows = 1 << 20
        work.dropped, work.wanted = self.catalogue.take_dropped(), self.catalogue.take_wanted()
        work.num_resets, work.generation = self.catalogue.num_resets, self.catalogue.generation
        assert self.time.next_at
        reports = self._run(work)
        self._check()
        for report in reports:
            chance = self.choice.random()
            times = 0 if chance < self.lost_share else 2 if chance < 2 * self.lost_share else 1
            self.reports += [report] * times
        while self.reports and self.choice.random() < 0.8:
            self.catalogue.take(self.reports.pop(0), is_unfinished=lambda _: True)
        self.time.advance(0.05 if work.num_tokens else 0.002)

    def _run(self, work: StepWork) -> list[RankReport]:
        """Let both ranks do a step's work; return their report, if there is one."""
        reports: list[RankReport | None] = [None, None]

        def run(number: int) -> None:
            try:
                self.ranks[number].fill_step(work)
                self.ranks[number].capture_step(work)
                reports[number] = self.ranks[number].take_report()
            except BaseException:
                self.barrier.abort()
                raise

        threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert not self.barrier.broken
        first, second = reports
        if first is None or second is None:
            return [report for report in reports if report is not None]
        return [first.merged(second)]

    def _check(self) -> None:
        one, other = self.ranks
        assert one.failed_requests == other.failed_requests
        assert one.filled.keys() == other.filled.keys()
        for rank in self.ranks:
            for request_id, plan in rank.filled.items():
                listed_chunks = self.orders[request_id].plan.stored
                for kv, listed in zip(plan.stored, listed_chunks, strict=True):
                    assert (kv is None) == (listed is None)
                    if kv is not None and listed is not None:
                        assert kv.tokens == listed.tokens
                        assert (kv.base, kv.exact_after) == (listed.base, listed.exact_after)
                        assert kv.layers[0][0].unique().tolist() == [rank.value]
        self.counts["failed"] += len(one.failed_requests)
        self.counts["filled"] += len(one.filled)
        for rank in self.ranks:
            rank.filled.clear()
            rank.failed_requests.clear()
            rank.failed_blocks.clear()
            check_store(rank.library.store)

    def ask_for_all(self) -> int:
        """Ask for one chunk after the other; return the hits."""
        before = self.counts["hits"]
        for number in range(NUM_CHUNKS):
            self.arrive([number])
            while self.waiting:
                self.step()
            for _ in range(4):
                self.step()
            self.time.advance(1.1)
        return self.counts["hits"] - before


@pytest.fixture
def kind(filler: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a class of ranks without a model: KV holds a number of the rank and its weights."""
    from ragboost.chunk_cache.vllm import worker

    monkeypatch.setattr(worker, "LOAD_PAUSE_S", 0.0)

    class Rank(type(filler), worker.RankFiller):  # type: ignore[misc]
        def __init__(self, ranks: TwoRanks, place: RankPlace, time: VirtualThreads) -> None:
            super().__init__()
            self.weights = [0]
            self.model = SimpleNamespace(
                ranks=ranks,
                device=torch.device("cpu"),
                dtype=torch.float32,
                fingerprint=lambda: f"w{self.weights[0]}",
                regime=lambda length: "r",
            )
            self.block_size, self.filled = TOKENS, {}
            store = TieredStore(
                remote=place,
                waits=False,
                clock=time.monotonic,
                host_bytes=2 * IN_MEMORY * KV_BYTES,
                write_bytes=4 * KV_BYTES,
            )
            store._tiers[0].speeds.computed(TOKENS, 0.1)
            self.library = ChunkLibrary(store, identity=Identity(model="w0"), regime="r")
            self._reported_generation, self._report, self._loading = 0, RankReport(), {}

        @property
        def value(self) -> int:
            rank: int = self.model.ranks.rank
            return 2 * self.weights[0] + rank

        def slots(self, blocks: Any, start: int, stop: int) -> torch.Tensor:
            return torch.arange(start, stop)

        def read(self, tokens: list[int], slots: Any, *, is_exact: bool = False) -> ChunkKV:
            start = len(tokens) - len(slots)
            value = torch.full((1, 1, len(slots), 2), float(self.value))
            exact_after = tokens_digest(tokens[:start]) if is_exact else None
            kv = ChunkKV(tuple(tokens[start:]), start, ((value, value),), "r", len(tokens))
            return ChunkKV(
                kv.tokens, start, kv.layers, "r", kv.length, exact_after=exact_after, compute_s=0.1
            )

        def advance(self, steps: Any, *, rows: int | None) -> Any:
            return SimpleNamespace(counts=TokenOrigins())

        def finish(self, plan: Any, filled: Any, slots: torch.Tensor) -> None:
            self.filled[plan.request_id] = plan

    return Rank


@pytest.mark.parametrize(
    ("seed", "damaged", "lost_share"),
    [(0, 0.0, 0.0), (1, 0.1, 0.0), (2, 0.0, 0.05), (3, 0.1, 0.05)],
)
def test_ranks_agree_whatever_their_places_do_and_load_again_afterwards(
    kind: Any, monkeypatch: pytest.MonkeyPatch, seed: int, damaged: float, lost_share: float
) -> None:
    time = VirtualThreads()
    monkeypatch.setattr(background, "time", time)
    monkeypatch.setattr(background, "Workers", time.workers)
    monkeypatch.setattr(catalogue, "time", time)
    monkeypatch.setattr(load_table, "MIN_WAIT_S", 0.05)
    world = World(kind, time, seed)
    world.lost_share = lost_share
    choice = world.choice
    for _ in range(250):
        chance = choice.random()
        if chance < 0.2:
            world.arrive(choice.sample(range(NUM_CHUNKS), choice.randint(1, 4)))
        elif chance < 0.215:
            world.reset()
        elif chance < 0.23 and world.waiting:
            del world.waiting[choice.choice(sorted(world.waiting))]  # aborted
        elif chance < 0.26:
            place = choice.choice(world.places)
            place.mode, place.damaged = choice.choice(sorted(MODES)), damaged
        elif chance < 0.28:
            choice.choice(world.ranks).library.store.forget()
        elif chance < 0.3:
            time.advance(choice.choice([0.1, 1.0, 6.0]))
        world.step()
    assert world.counts["hits"]
    assert world.counts["filled"]
    for place in world.places:
        place.mode, place.damaged = "well", 0.0
    world.lost_share = 0.0
    time.advance(100.0)
    # What differs is found, removed and computed once more. A rank that found its place slow asks
    # it again after up to 32 requests.
    assert any(world.ask_for_all() == NUM_CHUNKS for _ in range(6))
    assert world.ask_for_all() == NUM_CHUNKS
