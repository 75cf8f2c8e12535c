"""Requests of SGLang are planned, captured and reported once."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ragboost.chunk_cache.core.fill import FilledPrompt, fill_steps
from ragboost.chunk_cache.core.prompt_plan import PromptPlan
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.pace import Pace, advance, at_once
from ragboost.chunk_cache.sglang.scheduler import PoolRequest, PoolScheduler
from ragboost.chunk_cache.store.keys import behind_key, keys_of
from tests.chunk_cache.families import build_adapter, make_prompt
from tests.chunk_cache.prompts import learn, make_library, make_request

PAGE = 4
STEP = 16


class Req:
    """The fields of SGLang's request that chunk reuse reads."""

    def __init__(self, tokens: list[int], told: Any, **fields: Any) -> None:
        params = {} if told is None else {"ragboost": told}
        self.sampling_params = SimpleNamespace(custom_params=params)
        self.origin_input_ids = tokens
        self.rid = "a"
        self.extra_key = self.cache_salt = self.session = self.input_embeds = None
        self.multimodal_inputs = self.positional_embed_overrides = None
        self.return_logprob, self.logprob_start_len = False, -1
        self.__dict__.update(fields)


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter("qwen3-qk-norm")


class Bench:
    """A scheduler, and the request of a prompt whose chunks are stored."""

    def __init__(self, adapter: ModelAdapter, *, step_tokens: int = 1000) -> None:
        self.adapter, self.pace = adapter, Pace(1000)
        library = make_library(adapter)
        self.system, self.chunks, self.question = make_prompt()
        self.filler: Any = SimpleNamespace(
            library=library,
            model=adapter,
            num_passes=0,
            note_pass=lambda num_tokens, began, is_sample: None,
            end_pass=lambda: None,
            speed=None,
            forget=library.store.forget,
        )
        self.scheduler = PoolScheduler(
            self.filler,
            settings=EngineChunkSettings(),
            page_size=PAGE,
            step_tokens=step_tokens,
        )

    def learn(self) -> None:
        learn(self.filler.library, self.adapter, self.system, self.chunks)

    def req(self, *, ratio: float = 0.0, **fields: Any) -> Req:
        request, tokens = make_request(self.system, self.chunks, self.question)
        told = {"version": 1, "chunks": request.chunks, "ratio": ratio, "reply_to": ["inbox", 7]}
        return Req(tokens, json.dumps(told), **fields)

    def find(self, req: Req) -> PoolRequest:
        found = self.scheduler.find(req)
        assert found is not None
        return found

    def hit(self, req: Req, held: int = 0) -> int:
        return self.scheduler.hit(
            self.find(req), prefix_tokens=held, limit=len(req.origin_input_ids) - 1
        )

    def fill(self, req: Req) -> FilledPrompt:
        request = self.find(req)
        plan = self.scheduler.plan(request)
        assert isinstance(plan, PromptPlan)
        filled = at_once(fill_steps(self.adapter, plan, prefix=None, backend=None))
        self.scheduler.filled(request, plan, filled)
        return filled

    def plan(self, req: Req) -> PromptPlan:
        plan = self.scheduler.plan(self.find(req))
        assert isinstance(plan, PromptPlan)
        return plan

    def rows(self, req: Req) -> int | None:
        return self.scheduler.rows(self.find(req), self.plan(req))

    def advance(self, req: Req, rows: int | None) -> FilledPrompt | None:
        """Continue to fill, as the radix cache does."""
        request, plan, pace = self.find(req), self.plan(req), self.pace
        steps = request.steps
        if steps is None:
            steps = fill_steps(self.adapter, plan, prefix=None, backend=None, pace=pace)
        filled = advance(steps, pace, rows=rows)
        if filled is None:
            self.scheduler.pause(request, plan, steps)
        else:
            self.scheduler.filled(request, plan, filled)
        return filled


@pytest.fixture
def bench(adapter: ModelAdapter) -> Bench:
    return Bench(adapter)


def test_stored_chunks_are_a_hit_that_ends_with_a_page(bench: Bench) -> None:
    bench.learn()
    req = bench.req()

    hit = bench.hit(req)

    assert hit % PAGE == 0
    assert 0 < hit < len(req.origin_input_ids)


def test_a_prompt_that_is_computed_faster_is_no_hit(bench: Bench) -> None:
    bench.learn()
    bench.filler.speed = SimpleNamespace(is_faster=lambda rows, saved_tokens: False)
    req = bench.req()

    assert bench.hit(req) == 0
    assert bench.find(req).reason == "slower"


def test_a_waiting_request_sees_chunks_that_another_one_brings(bench: Bench) -> None:
    waiting, first = bench.req(), bench.req()
    assert bench.hit(waiting) == 0

    captured = bench.scheduler.captures(bench.find(first), len(first.origin_input_ids))
    bench.learn()

    assert [chunk.is_exact for chunk in captured] == [True] * len(bench.chunks)
    assert bench.hit(waiting) > 0


def test_chunks_are_taken_out_once_the_whole_prompt_is_computed(bench: Bench) -> None:
    request = bench.find(req := bench.req())

    assert bench.scheduler.captures(request, len(req.origin_input_ids) - 1) == []
    assert len(bench.scheduler.captures(request, len(req.origin_input_ids))) == len(bench.chunks)
    assert bench.scheduler.captures(request, len(req.origin_input_ids) + 1) == []


def test_the_tree_gets_nothing_from_the_first_approximate_page_on(bench: Bench) -> None:
    bench.learn()
    req = bench.req()
    bench.hit(req)
    bench.fill(req)

    request = bench.find(req)
    # The first chunk stands where it was computed, so that the second is approximate.
    assert request.exact_stop is not None
    assert request.exact_stop % PAGE == 0
    assert request.exact_stop <= request.options.chunks[1][0]
    assert bench.scheduler.captures(request, len(req.origin_input_ids)) == []


def test_a_report_adds_up_and_is_given_once(bench: Bench) -> None:
    bench.learn()
    req = bench.req()
    bench.hit(req)
    bench.fill(req)

    report = bench.scheduler.finish(req)

    assert report is not None
    reply_to, told = report[0], report[1].fields
    assert reply_to == ["inbox", 7]
    assert sum(told.values()) == len(req.origin_input_ids)
    assert told["reused"] > 0
    assert bench.scheduler.finish(req) is None


def test_an_exact_request_reports_why(bench: Bench) -> None:
    req = bench.req()
    assert bench.hit(req, held=4) == 0

    report = bench.scheduler.finish(req)

    assert report is not None
    assert report[1].reason == "nothing_stored"
    assert report[1].origins.exact == 4


def test_a_request_whose_filling_failed_is_computed(bench: Bench) -> None:
    bench.learn()
    req = bench.req()
    bench.scheduler.failed(bench.find(req))

    assert bench.hit(req) == 0
    report = bench.scheduler.finish(req)
    assert report is not None
    assert report[1].reason == "failed"


@pytest.mark.parametrize("fields", [{"extra_key": "team"}, {"cache_salt": "salt"}])
def test_namespaces_of_sglang_have_stored_chunks_of_their_own(
    bench: Bench, fields: dict[str, Any]
) -> None:
    bench.learn()

    assert bench.hit(bench.req()) > 0
    assert bench.hit(bench.req(**fields)) == 0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"multimodal_inputs": object()}, "multimodal"),
        ({"session": object()}, "session"),
        ({"input_embeds": [[0.0]]}, "prompt_embeddings"),
        ({"return_logprob": True, "logprob_start_len": 0}, "prompt_logprobs"),
    ],
)
def test_what_is_not_supported_is_computed_with_the_reason(
    bench: Bench, fields: dict[str, Any], reason: str
) -> None:
    bench.learn()
    req = bench.req(**fields)

    assert bench.hit(req) == 0
    report = bench.scheduler.finish(req)
    assert report is not None
    assert report[1].reason == reason


@pytest.mark.parametrize(
    "told", ["no JSON", "3", "[]", "[" * 100_000, '{"version": 2}', {"chunks": [[5, 1]]}]
)
def test_malformed_plans_are_computed(bench: Bench, told: Any) -> None:
    req = Req(list(range(50)), told)

    assert bench.hit(req) == 0
    report = bench.scheduler.finish(req)
    assert report is not None
    assert report[1].reason is not None


def test_other_requests_are_not_tracked(bench: Bench) -> None:
    assert bench.scheduler.find(Req([1, 2], None)) is None
    assert len(bench.scheduler) == 0


def test_nothing_is_left_of_a_request_that_never_ran(bench: Bench) -> None:
    req = bench.req()
    bench.hit(req)
    assert len(bench.scheduler) == 1

    del req

    assert len(bench.scheduler) == 0


def test_new_weights_leave_no_chunk_of_a_waiting_request(bench: Bench) -> None:
    bench.learn()
    req = bench.req()
    assert bench.hit(req) > 0

    bench.scheduler.forget_chunks()

    assert bench.hit(req) == 0
    assert bench.scheduler.captures(bench.find(req), len(req.origin_input_ids)) == []


def test_prompts_beyond_the_budget_of_a_step_wait_for_the_next(adapter: ModelAdapter) -> None:
    bench = Bench(adapter, step_tokens=60)  # one prompt needs 45
    bench.learn()
    first, second = bench.req(ratio=0.5), bench.req(ratio=0.5, rid="b")

    assert bench.rows(first) is None
    assert bench.rows(second) == 0
    bench.filler.num_passes += 1
    assert bench.rows(second) is None


def test_a_prompt_that_needs_more_than_a_step_is_filled_over_several(adapter: ModelAdapter) -> None:
    bench = Bench(adapter, step_tokens=STEP)
    bench.learn()
    req = bench.req(ratio=0.5)
    stop = bench.plan(req).stop
    at_once = bench.fill(bench.req(ratio=0.5))

    given = []
    filled = None
    while filled is None:
        given.append(bench.rows(req))
        filled = bench.advance(req, given[-1])
        bench.filler.num_passes += 1

    assert len(given) > 2
    assert given == [STEP] * len(given)
    assert filled.selected == at_once.selected
    for one, other in zip(filled.cache.layers, at_once.cache.layers, strict=True):
        torch.testing.assert_close(one.keys[:, :, :stop], other.keys[:, :, :stop])
        torch.testing.assert_close(one.values[:, :, :stop], other.values[:, :, :stop])
    assert bench.find(req).steps is None


def test_a_filling_goes_on_while_the_engine_has_nothing_to_compute(adapter: ModelAdapter) -> None:
    bench = Bench(adapter, step_tokens=STEP)
    bench.learn()
    req = bench.req(ratio=0.5)

    filled = None
    for _ in range(len(req.origin_input_ids)):
        filled = filled or bench.advance(req, bench.rows(req))

    assert bench.filler.num_passes == 0
    assert filled is not None


def test_a_prompt_that_overtakes_one_that_is_being_filled_is_filled_at_once(
    adapter: ModelAdapter,
) -> None:
    bench = Bench(adapter, step_tokens=STEP)
    bench.learn()
    waiting, other = bench.req(ratio=0.5), bench.req(ratio=0.5, rid="b")
    assert bench.advance(waiting, bench.rows(waiting)) is None
    bench.filler.num_passes += 1

    assert bench.rows(other) is None
    assert bench.advance(other, None) is not None
    assert bench.rows(waiting) == STEP // 4  # the least, beside the other one


def test_a_filling_serves_whatever_the_tree_holds_by_its_end(adapter: ModelAdapter) -> None:
    bench = Bench(adapter, step_tokens=STEP)
    bench.learn()
    req = bench.req(ratio=0.5)
    stop = bench.hit(req)
    assert bench.advance(req, bench.rows(req)) is None

    for held in (8, 0, stop - PAGE):
        assert bench.hit(req, held=held) == stop - held
    while bench.advance(req, bench.rows(req)) is None:
        pass

    assert bench.find(req).exact_stop == stop - PAGE


def test_a_filling_is_forgotten_if_the_tree_holds_all_of_it(adapter: ModelAdapter) -> None:
    bench = Bench(adapter, step_tokens=STEP)
    bench.learn()
    req = bench.req(ratio=0.5)
    stop = bench.hit(req)
    assert bench.advance(req, bench.rows(req)) is None

    assert bench.hit(req, held=stop) == 0
    assert bench.find(req).steps is None


@pytest.mark.parametrize("leave", ["abandoned", "finished", "new weights", "failed", "retracted"])
def test_nothing_is_left_of_a_filling_whose_request_leaves(
    adapter: ModelAdapter, leave: str
) -> None:
    bench = Bench(adapter, step_tokens=STEP)
    bench.learn()
    req = bench.req(ratio=0.5)
    assert bench.advance(req, bench.rows(req)) is None
    request = bench.find(req)
    steps = request.steps
    assert steps is not None

    bench.scheduler.abandon("b")
    assert request.steps is steps
    leaving: dict[str, Callable[[], object]] = {
        "abandoned": lambda: bench.scheduler.abandon("a"),
        "finished": lambda: bench.scheduler.finish(req),
        "new weights": lambda: bench.scheduler.forget_chunks(),
        "failed": lambda: bench.scheduler.failed(request),
        "retracted": lambda: bench.scheduler.forget_fill(request),
    }
    leaving[leave]()

    assert request.steps is None
    bench.filler.num_passes += 1
    assert bench.rows(bench.req(ratio=0.5, rid="b")) == STEP  # it is the one filled in steps


class Differing:
    """Ranks of which another one holds other chunks."""

    size = 2

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return values

    def agree(self, is_fine: bool) -> bool:
        return is_fine

    def same(self, value: object) -> bool:
        return False


def test_chunks_that_ranks_hold_differently_are_computed_and_forgotten_by_all(
    bench: Bench,
) -> None:
    bench.learn()
    store = bench.filler.library.store
    for chunk in bench.chunks:  # behind others, too
        key = bench.filler.library.key(chunk)
        store.put(behind_key(key), store.get(key))
    bench.filler.model = SimpleNamespace(ranks=Differing(), num_layers=2)
    req = bench.req()

    assert bench.hit(req) == 0
    request = bench.find(req)
    assert request.reason == "ranks_differ"
    assert not store.keys("")


def test_several_ranks_measure_nothing_and_keep_what_they_compute_behind_neighbours(
    bench: Bench,
) -> None:
    bench.learn()
    bench.filler.model = SimpleNamespace(ranks=Differing(), num_layers=2)
    req = bench.req()
    told = json.loads(req.sampling_params.custom_params["ragboost"])
    req.sampling_params.custom_params["ragboost"] = json.dumps({**told, "measure": True})

    assert bench.find(req).options.reason == "several_workers"
    library = bench.filler.library
    keys = [keys_of(library.key(chunk)) for chunk in bench.chunks]
    captured = bench.scheduler.captures(bench.find(req), len(req.origin_input_ids))
    assert [chunk.key for chunk in captured] == [behind for _, behind in keys[1:]]
