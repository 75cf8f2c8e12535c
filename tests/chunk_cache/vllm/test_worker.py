"""The worker's part of a step, without vLLM: its modules are stand-ins."""

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.request import TokenOrigins
from ragboost.chunk_cache.core.reusing_request import ChunkCapture
from ragboost.chunk_cache.model.ranks import ONE_RANK
from ragboost.chunk_cache.store.keys import Identity
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.chunk_cache.vllm.data import (
    BlockCapture,
    PromptFill,
    RankReport,
    StepWork,
)
from tests.chunk_cache.store.chunks import make_chunk
from tests.chunk_cache.store.places import HungPlace
from tests.eventually import DEADLINE_S, eventually

_NAMES = {
    "vllm": (),
    "vllm.distributed": (),
    "vllm.distributed.kv_transfer": ("get_kv_transfer_group", "has_kv_transfer_group"),
    "vllm.distributed.kv_transfer.kv_connector": (),
    "vllm.distributed.kv_transfer.kv_connector.v1": (),
    "vllm.distributed.kv_transfer.kv_connector.v1.base": (
        "KVConnectorBase_V1",
        "KVConnectorHandshakeMetadata",
        "KVConnectorMetadata",
        "KVConnectorRole",
        "KVConnectorWorkerMetadata",
        "SupportsHMA",
    ),
    "vllm.platforms": ("current_platform",),
    "vllm.v1": (),
    "vllm.v1.worker": (),
    "vllm.v1.worker.cpu_worker": ("CPUWorker",),
}
_OURS = ("ragboost.chunk_cache.vllm.connector", "ragboost.chunk_cache.vllm.worker")
BLOCK = 4


@pytest.fixture
def filler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A filler without a model; the filling of request "a" fails."""
    for name, members in _NAMES.items():
        module = ModuleType(name)
        for member in members:
            setattr(module, member, type(member, (), {"is_cpu": staticmethod(lambda: True)}))
        monkeypatch.setitem(sys.modules, name, module)
    for name in _OURS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    from ragboost.chunk_cache.vllm.worker import BlockFiller

    class Filler(BlockFiller):  # type: ignore[misc]  # its base has a stand-in
        """Notes nothing but what fails."""

        def __init__(self) -> None:
            self.model = SimpleNamespace(ranks=ONE_RANK, device=torch.device("cpu"))
            self.block_size = BLOCK
            self.outcomes, self.failed_blocks, self.failed_requests = {}, set(), set()
            self.done_requests, self._fills, self._steps = set(), {}, None
            self.num_layers, self._pass_began, self._pass_tokens = 1, 0.0, 0

        def begin(self, plan: Any, prefix_slots: torch.Tensor) -> Any:
            return plan

        def advance(self, steps: Any, *, rows: int | None) -> Any:
            if steps.fails:
                raise RuntimeError("out of memory")
            return SimpleNamespace(counts=TokenOrigins())

        def finish(self, plan: Any, filled: Any, slots: torch.Tensor) -> None:
            pass

    yield Filler()
    for name in _OURS:
        sys.modules.pop(name, None)


@pytest.fixture
def place() -> Iterator[HungPlace]:
    hung = HungPlace()
    yield hung
    hung.may_answer.set()


@pytest.fixture
def rank(filler: Any, place: HungPlace) -> Any:
    """The filler of one of several ranks, whose chunks are in a place that hangs."""
    from ragboost.chunk_cache.vllm.worker import RankFiller

    class Rank(type(filler), RankFiller):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            store = TieredStore(remote=place, waits=False)
            self.library = ChunkLibrary(store, identity=Identity(model="m"), regime="r")
            self._reported_generation = 0
            self._report, self._loading = RankReport(), {}

    return Rank()


def fill(
    request_id: str,
    prefix_tokens: int,
    blocks: list[int],
    *,
    fails: bool = False,
) -> Any:
    stop = len(blocks) * BLOCK
    plan: Any = SimpleNamespace(
        prefix_tokens=prefix_tokens,
        stop=stop,
        fails=fails,
        num_to_compute=lambda num_layers: stop - prefix_tokens,
    )
    return PromptFill(request_id, plan, blocks)


def test_a_filling_begins_after_the_pass_of_the_step_that_orders_it(filler: Any) -> None:
    """vLLM hashes blocks when it schedules them: the pass may compute those that they share."""
    filler.fill_step(StepWork(fills=[fill("a", BLOCK, [1, 2])], rows=100))
    assert (filler.outcomes, filler.done_requests) == ({}, set())

    filler.fill_step(StepWork(rows=100))
    assert (set(filler.outcomes), filler.done_requests) == ({"a"}, {"a"})


def test_a_filling_that_fails_ends_and_only_its_own_blocks_are_computed(filler: Any) -> None:
    fills = [fill("a", BLOCK, [1, 2, 3], fails=True), fill("b", BLOCK, [1, 4])]

    for work in (StepWork(fills=fills), StepWork(rows=100)):
        filler.fill_step(work)

    assert filler.failed_requests == {"a"}
    assert filler.failed_blocks == {2, 3}
    assert filler.done_requests == {"a", "b"}
    assert set(filler.outcomes) == {"b"}


def test_requests_are_filled_in_one_step_as_long_as_it_has_rows(filler: Any) -> None:
    fills = [fill(name, 0, [number, 9]) for number, name in enumerate("abcd")]
    filler.fill_step(StepWork(fills=fills, rows=100))

    filler.fill_step(StepWork(rows=2 * BLOCK + 1))
    assert filler.done_requests == {"a", "b"}

    filler.fill_step(StepWork(rows=4 * BLOCK))
    assert filler.done_requests == {"a", "b", "c", "d"}


def test_a_pass_is_not_charged_with_the_fillings_of_its_step(
    filler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ragboost.chunk_cache.vllm import worker

    clock = iter([10.0, 13.0])  # beginning and end of the fillings
    monkeypatch.setattr(worker, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    filler.note_pass(64, began=9.0)  # as the step begins

    filler.fill_step(StepWork(fills=[fill("a", 0, [1])]))

    assert filler._pass_began == 12.0


def test_beside_another_connector_reuse_stays_off_with_that_reason(
    filler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ragboost.chunk_cache.vllm import connector

    alone, beside = (object.__new__(connector.ChunkConnector) for _ in range(2))
    alone.off_reason = beside.off_reason = None
    monkeypatch.setattr(connector, "has_kv_transfer_group", lambda: True)
    for group, found in ((alone, alone), (SimpleNamespace(sub_connectors=[0, beside]), beside)):
        monkeypatch.setattr(connector, "get_kv_transfer_group", lambda group=group: group)
        assert connector.find_connector() is found

    assert (alone.off_reason, beside.off_reason) == (None, "several_connectors")


def test_a_step_without_tokens_ends_when_a_chunk_has_been_loaded(
    rank: Any, place: HungPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else ranks and scheduler spin, beside the threads that load."""
    from ragboost.chunk_cache.vllm import worker

    def step() -> None:
        rank.fill_step(StepWork(wanted={"a": 6}))
        reports.append(rank.take_report())

    reports: list[RankReport | None] = []
    monkeypatch.setattr(worker, "LOAD_PAUSE_S", DEADLINE_S)
    place.chunks["a-0"] = make_chunk()
    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    assert place.was_asked.acquire(timeout=DEADLINE_S)
    place.may_answer.set()
    thread.join(DEADLINE_S)
    assert [[*report.loaded] for report in reports if report] == [[(0, "a")]]


def test_a_step_of_running_requests_waits_for_no_load(
    rank: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank.library.store, "wait_for_load", None)
    rank.fill_step(StepWork(wanted={"a": 6}, num_tokens=1))
    assert rank.take_report() is None


def test_a_load_that_is_late_is_reported_as_that_once_and_goes_on(
    rank: Any, place: HungPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(rank.library.store._loads, "_clock", lambda: now[0])
    place.chunks["a-0"] = make_chunk()
    rank.fill_step(StepWork(wanted={"a": 6}, num_tokens=1))
    assert rank.take_report() is None
    now[0] = 1e6
    assert rank.take_report().late == {"a"}
    assert rank.take_report() is None
    place.may_answer.set()
    report = eventually(rank.take_report)
    assert [*report.loaded] == [(0, "a")]


def test_a_chunk_that_is_evicted_and_asked_for_in_one_step_is_loaded(
    rank: Any, place: HungPlace
) -> None:
    place.may_answer.set()
    place.chunks["a-0"] = make_chunk()
    wanted = {"a": 6}
    rank.fill_step(StepWork(wanted=wanted, num_tokens=1))
    assert [*eventually(rank.take_report).loaded] == [(0, "a")]
    rank.fill_step(StepWork(dropped={"a": False}, wanted=wanted, num_tokens=1))
    report = eventually(rank.take_report)
    assert ([*report.loaded], report.absent) == ([(0, "a")], set())


def test_versions_that_differ_between_ranks_are_removed_from_the_place(
    rank: Any, place: HungPlace
) -> None:
    place.may_answer.set()
    place.chunks |= {"a-0": make_chunk(), "b-0": make_chunk(1)}
    rank.fill_step(StepWork(dropped={"a": True, "b": False}))
    eventually(lambda: place.chunks.keys() == {"b-0"})


def test_a_chunk_of_new_weights_is_not_stored_under_a_key_of_the_old_ones(
    rank: Any, place: HungPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.may_answer.set()
    kv = make_chunk()
    monkeypatch.setattr(rank, "read", lambda *args, **options: kv)
    monkeypatch.setattr(rank.library, "renewed", lambda model: rank.library)
    key = rank.library.key(kv.tokens)
    capture = BlockCapture("r", ChunkCapture(key, [*kv.tokens], 0, True, True), [1, 2])
    work = StepWork(captures=[capture])
    rank.capture_step(work)
    assert len(rank.take_report().captured) == 1
    rank.library.store.clear()
    other = ChunkLibrary(rank.library.store, identity=Identity(model="n"), regime="r")
    monkeypatch.setattr(rank.library, "renewed", lambda model: other)
    rank.check_weights()
    rank.capture_step(work)  # the scheduler does not know yet
    report = rank.take_report()
    assert (report.generation, report.weights, report.captured) == (1, "n", Counter())
    rank.library.store.flush()
    assert not place.chunks


def test_after_a_reset_a_rank_looks_at_its_weights_in_the_next_step_that_computes(
    rank: Any, place: HungPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.may_answer.set()
    looks: list[str] = []

    def renewed(model: object) -> ChunkLibrary:
        looks.append("look")
        library: ChunkLibrary = rank.library
        return library

    monkeypatch.setattr(rank.library, "renewed", renewed)
    rank.library.store.put("a-0", make_chunk())
    rank.fill_step(StepWork(num_resets=2))
    assert not looks, "a sleeping engine has no weights"
    for _ in range(2):
        rank.fill_step(StepWork(num_resets=2, num_tokens=1))
    assert len(looks) == 1
    assert rank.library.store.get("a-0") is None
    report = rank.take_report()
    assert (report.generation, report.weights, report.num_resets) == (1, "m", 2)
