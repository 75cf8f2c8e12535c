"""Requests of vLLM are planned, captured and reported once."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ragboost.chunk_cache.core import reusing_request
from ragboost.chunk_cache.core.fill import fill_steps
from ragboost.chunk_cache.core.prompt_plan import plan_prompt
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.pace import at_once
from ragboost.chunk_cache.store.load_table import MAX_WAIT_S
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.chunk_cache.vllm.data import StepWork
from ragboost.chunk_cache.vllm.scheduler import ChunkScheduler
from tests.chunk_cache.families import build_adapter, make_prompt
from tests.chunk_cache.prompts import exact_prefix, learn, make_library, make_request
from tests.chunk_cache.store.places import HungPlace
from tests.chunk_cache.vllm.test_block_salt import SIZE, Request
from tests.eventually import eventually

ORIGINS = ("exact", "reused", "recomputed", "computed")


class EngineRequest(Request):
    """The fields of vLLM's request that chunk reuse reads."""

    def __init__(
        self, tokens: list[int], told: Any, *, number: str = "a", cache_salt: str | None = None
    ) -> None:
        super().__init__(tokens)
        self.request_id = number
        self.kv_transfer_params = {"ragboost": told}
        self.prompt_token_ids = list(tokens)
        self.num_prompt_tokens = len(tokens)
        self.num_computed_tokens = 0
        self.sampling_params = SimpleNamespace(prompt_logprobs=None)
        self.skip_reading_prefix_cache, self.mm_features, self.prompt_embeds = False, [], None
        self.cache_salt = cache_salt
        self.status = SimpleNamespace(name="RUNNING")


class Bench:
    """A scheduler, and requests of a prompt whose chunks may be stored."""

    def __init__(self, adapter: ModelAdapter) -> None:
        self.adapter, self.library = adapter, make_library(adapter)
        self.system, self.chunks, self.question = make_prompt()
        self.worker: Any = SimpleNamespace(
            library=self.library,
            speed=None,
            block_size=SIZE,
            num_layers=adapter.num_layers,
            can_measure=True,
            generation=0,
            take_dropped=dict,
            num_resets=0,
            take_wanted=dict,
            forget_chunks=self.forget,
            outcomes={},
            failed_requests=set(),
        )
        limits = SimpleNamespace(max_num_batched_tokens=1000)
        config = SimpleNamespace(scheduler_config=limits)
        self.scheduler = ChunkScheduler(self.worker, config, settings=EngineChunkSettings())
        self.scheduler.cache_manager = SimpleNamespace(get_block_ids=lambda _: [list(range(1000))])

    def forget(self) -> None:
        self.library.store.clear()

    def learn(self, chunks: list[list[int]]) -> None:
        learn(self.library, self.adapter, self.system, chunks)

    def request(self, *, reply_to: Any = None, **fields: Any) -> EngineRequest:
        request, tokens = make_request(self.system, self.chunks, self.question)
        told = {"version": 1, "chunks": request.chunks, "ratio": 0.0, "reply_to": reply_to}
        found = EngineRequest(tokens, told, **fields)
        self.scheduler.add(found)
        return found

    def schedule(self, request: EngineRequest, *, held: int = 0) -> StepWork:
        """Schedule the whole prompt in one step, as vLLM does."""
        filled = self.scheduler.match(request, held).num_tokens
        assert filled is not None
        self.scheduler.allocated(request, filled)
        request.num_computed_tokens = held + filled
        return self.scheduler.next_step(
            {request.request_id: len(request.tokens) - request.num_computed_tokens}
        )

    def fill(self, work: StepWork) -> None:
        """Do the worker's part of a step."""
        for fill in work.fills:
            plan = fill.plan
            start = plan.prefix_tokens
            prefix = exact_prefix(self.adapter, plan.tokens[:start]) if start else None
            filled = at_once(fill_steps(self.adapter, plan, prefix=prefix, backend=None))
            self.worker.outcomes[fill.request_id] = filled.counts

    def finish(self, request: EngineRequest) -> dict[str, Any]:
        report = self.scheduler.finish(request)
        assert report is not None
        return report.fields


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter("qwen3-qk-norm")


@pytest.fixture
def bench(adapter: ModelAdapter) -> Bench:
    return Bench(adapter)


def check(told: dict[str, Any], request: EngineRequest) -> None:
    """Check that the origins of a prompt's tokens are numbers of tokens and add up."""
    assert sum(told[name] for name in ORIGINS) == request.num_prompt_tokens
    assert min(told[name] for name in ORIGINS) >= 0


def test_a_request_from_before_new_weights_is_computed_and_leaves_nothing(bench: Bench) -> None:
    bench.learn(bench.chunks[:1])
    before = bench.request()
    bench.worker.library = make_library(bench.adapter)

    work = bench.schedule(before)

    assert not work.fills
    assert not work.captures
    told = bench.finish(before)
    check(told, before)
    assert told["reason"] == "new_weights"
    assert bench.schedule(bench.request(number="b")).captures


def test_a_request_that_was_filled_reports_it(bench: Bench) -> None:
    bench.learn(bench.chunks)
    request = bench.request()

    bench.fill(bench.schedule(request))

    told = bench.finish(request)
    check(told, request)
    assert told["reused"] > 0
    assert "reason" not in told


@pytest.mark.parametrize("is_first_to_end", [False, True])
def test_choices_of_one_answer_report_their_prompt_as_it_was_filled(
    bench: Bench, is_first_to_end: bool
) -> None:
    """They share its blocks; a later request with that prompt says that it reused them."""
    bench.learn(bench.chunks)
    requests = [bench.request(number=name, reply_to=["inbox", 7]) for name in ("0_a", "1_a")]
    later = bench.request(number="b", reply_to=["inbox", 8])
    held = len(later.tokens) // SIZE * SIZE
    bench.fill(bench.schedule(requests[0]))
    for other in (requests[1], later):
        bench.schedule(other, held=held)

    told = [bench.finish(request) for request in requests[:: -1 if is_first_to_end else 1]]

    assert told[0] == told[1]
    assert told[0]["computed"] == len(later.tokens) - told[0]["exact"] - told[0]["reused"]
    assert bench.finish(later)["reused"] > told[0]["reused"]


def test_only_passes_that_compute_prompts_are_samples_of_their_speed(bench: Bench) -> None:
    steps = [{"a": 40}, {"a": 1, "b": 1}, {"a": 40, "b": 1}, {"a": 3, "b": 1, "c": 1, "d": 1}]
    works = [bench.scheduler.next_step(step) for step in steps]
    assert [work.is_prefill for work in works] == [True, False, True, False]


def test_a_preempted_request_that_finds_its_own_blocks_reports_them_once(bench: Bench) -> None:
    bench.learn(bench.chunks)
    request = bench.request()
    bench.fill(bench.schedule(request))

    request.append(list(range(2 * SIZE)))
    bench.schedule(request, held=len(request.prompt_token_ids) // SIZE * SIZE)

    told = bench.finish(request)
    check(told, request)
    assert told["reused"] > 0


def test_a_preempted_request_whose_answer_is_cached_too_reports_its_prompt(bench: Bench) -> None:
    request = bench.request()
    bench.schedule(request)

    request.append(list(range(2 * SIZE)))
    bench.schedule(request, held=len(request.tokens) // SIZE * SIZE)

    check(bench.finish(request), request)


def test_a_prompt_that_is_computed_faster_is_not_filled(bench: Bench) -> None:
    bench.learn(bench.chunks)
    bench.worker.speed = SimpleNamespace(is_faster=lambda rows, saved_tokens: False)
    request = bench.request()

    work = bench.schedule(request)

    told = bench.finish(request)
    check(told, request)
    assert (work.fills, told["reused"], told["reason"]) == ([], 0, "slower")


def test_a_request_waits_while_its_prompt_is_filled(bench: Bench) -> None:
    bench.learn(bench.chunks)
    request = bench.request()

    match = bench.scheduler.match(request, 0)

    assert match.num_tokens
    assert match.is_filled
    bench.scheduler.allocated(request, match.num_tokens)
    work = bench.scheduler.next_step({})
    assert [fill.request_id for fill in work.fills] == [request.request_id]
    assert work.rows > 0


def test_a_request_whose_filling_failed_says_so(bench: Bench) -> None:
    bench.learn(bench.chunks)
    request = bench.request()
    bench.schedule(request)
    bench.worker.failed_requests.add(request.request_id)  # vLLM computes it, without asking again

    told = bench.finish(request)

    check(told, request)
    assert told["reason"] == "fill_failed"
    assert not bench.worker.failed_requests


def test_chunks_behind_a_filled_one_are_captured(bench: Bench) -> None:
    bench.learn(bench.chunks[:-1])
    request = bench.request()

    work = bench.schedule(request)

    assert [capture.chunk.start for capture in work.captures] == [
        len(request.tokens) - len(bench.chunks[-1]) - len(bench.question)
    ]
    assert work.captures[0].request_id == request.request_id


def test_what_is_stored_is_not_copied_again_and_what_was_cached_has_no_time(bench: Bench) -> None:
    first = bench.request()
    cached = bench.request(number="b").prompt_token_ids
    held = len(cached) // SIZE * SIZE
    (chunk, *_) = bench.schedule(first).captures
    assert chunk.chunk.is_timed
    (chunk, *_) = bench.schedule(bench.request(number="c"), held=held).captures
    assert not chunk.chunk.is_timed, "the pass has not computed it"

    bench.learn(bench.chunks)

    captures = bench.schedule(bench.request(number="d"), held=held).captures
    assert not any(capture.chunk.is_first for capture in captures)


def test_nothing_is_captured_in_later_steps_of_a_request_whose_filling_failed(
    bench: Bench,
) -> None:
    bench.learn(bench.chunks[:-1])
    request = bench.request()
    filled = bench.scheduler.match(request, 0).num_tokens
    assert filled
    bench.scheduler.allocated(request, filled)
    request.num_computed_tokens = filled
    assert bench.scheduler.next_step({request.request_id: 1}).captures == []

    bench.worker.failed_requests.add(request.request_id)
    work = bench.scheduler.next_step({request.request_id: len(request.tokens) - filled})

    assert work.captures == []


def test_namespaces_of_vllm_have_stored_chunks_of_their_own(bench: Bench) -> None:
    bench.learn(bench.chunks)
    shared, salted = bench.request(), bench.request(number="b", cache_salt="another tenant")

    assert bench.scheduler.match(shared, 0).num_tokens
    assert bench.scheduler.match(salted, 0).num_tokens == 0


def test_a_reset_forgets_what_is_stored_and_what_was_planned(bench: Bench) -> None:
    bench.learn(bench.chunks)
    before = bench.request()
    assert bench.scheduler.match(before, 0).num_tokens

    bench.scheduler.forget_chunks()

    work = bench.schedule(before)
    assert not work.fills
    assert not work.captures  # its KV may be of weights that were changed under it
    assert bench.finish(before)["reason"] == "cache_reset"
    assert not bench.schedule(bench.request(number="b")).fills


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The cached tokens for which a prompt was planned, in order."""
    calls: list[int] = []

    def plan(*args: Any, prefix_tokens: int, **options: Any) -> Any:
        calls.append(prefix_tokens)
        return plan_prompt(*args, prefix_tokens=prefix_tokens, **options)

    monkeypatch.setattr(reusing_request, "plan_prompt", plan)
    return calls


def test_a_request_is_planned_once_for_a_prefix_and_a_state_of_the_store(
    bench: Bench, planned: list[int]
) -> None:
    bench.learn(bench.chunks[:-1])
    request = bench.request()

    answers = [bench.scheduler.match(request, 0) for _ in range(3)]
    bench.scheduler.next_step({})
    answers.append(bench.scheduler.match(request, 0))
    assert planned == [0]
    assert len(set(answers)) == 1

    longer = bench.scheduler.match(request, SIZE)
    assert planned == [0, SIZE]
    assert (longer.num_tokens or 0) + SIZE == answers[0].num_tokens

    bench.learn(bench.chunks[-1:])
    changed = [bench.scheduler.match(request, SIZE) for _ in range(2)]
    assert planned == [0, SIZE, SIZE]
    assert (changed[0].num_tokens or 0) > (longer.num_tokens or 0)


def test_no_plan_keeps_kv_that_the_store_has_dropped(bench: Bench) -> None:
    bench.learn(bench.chunks)
    request = bench.request()
    assert bench.scheduler.match(request, 0).num_tokens

    bench.library.store.clear()
    bench.scheduler.next_step({})

    assert not bench.scheduler._plans


def test_asking_for_a_request_leaves_nothing_unless_it_is_scheduled(bench: Bench) -> None:
    bench.learn(bench.chunks)
    request, other = bench.request(), bench.request(number="b")
    plain = list(request.block_hashes)

    for _ in range(2):
        assert bench.scheduler.match(request, 0).num_tokens  # there is no room for it
        assert request.block_hashes != plain
        bench.scheduler.next_step({})
        assert request.block_hashes == plain

    assert bench.schedule(other).fills
    assert request.block_hashes == other.block_hashes  # it will find the blocks of its equal
    assert bench.schedule(request).fills


def test_only_the_last_answer_of_a_step_salts_blocks(bench: Bench) -> None:
    bench.learn(bench.chunks)
    request = bench.request()
    plain = list(request.block_hashes)
    assert bench.scheduler.match(request, 0).num_tokens

    bench.library.store.clear()

    assert bench.scheduler.match(request, 0).num_tokens == 0
    assert request.block_hashes == plain


def test_a_request_whose_chunks_are_on_their_way_is_asked_for_again(adapter: ModelAdapter) -> None:
    """The scheduler's thread never asks the place itself; other requests go on."""
    bench, place = Bench(adapter), HungPlace()
    bench.learn(bench.chunks)
    memory = bench.library.store
    assert isinstance(memory, TieredStore)
    place.chunks |= dict(memory.memory.items())
    bench.library.store = TieredStore(remote=place, waits=False)
    request = bench.request()
    other = EngineRequest([1] * 40, None, number="b")
    bench.scheduler.add(other)

    for _ in range(3):
        assert bench.scheduler.match(request, 0).num_tokens is None
        assert bench.scheduler.match(other, 0).num_tokens == 0
        bench.scheduler.next_step({})
    place.may_answer.set()
    eventually(lambda: bench.scheduler.match(request, 0).num_tokens is not None)
    work = bench.schedule(request)

    assert len(work.fills) == 1
    assert all(kv is not None for kv in work.fills[0].plan.stored)
    assert threading.current_thread().name not in place.threads
    bench.library.store.close()


def test_a_request_does_not_wait_for_the_loads_of_later_ones_for_ever(
    adapter: ModelAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(adapter)
    request = bench.request()
    monkeypatch.setattr(type(bench.library.store), "is_loading", lambda store, keys: True)
    assert bench.scheduler.match(request, 0).num_tokens is None
    bench.scheduler._tracked[request.request_id].asked.arrived_at -= MAX_WAIT_S + 1
    assert bench.scheduler.match(request, 0).num_tokens == 0


def test_a_request_is_computed_if_its_chunks_do_not_come_in_time(adapter: ModelAdapter) -> None:
    bench, place, now = Bench(adapter), HungPlace(), [0.0]
    bench.library.store = TieredStore(remote=place, waits=False, clock=lambda: now[0])
    request = bench.request()
    assert bench.scheduler.match(request, 0).num_tokens is None
    now[0] = 1e6
    assert bench.scheduler.match(request, 0).num_tokens == 0
    place.may_answer.set()
    bench.library.store.close()
