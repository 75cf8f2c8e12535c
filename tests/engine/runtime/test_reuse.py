"""Chunks are reused between requests of one engine; nothing approximate reaches exact requests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ragboost.chunk_cache.core.request import ReuseOptions
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.selection import MEASURED, POLICIES
from ragboost.chunk_cache.selection.policy import SelectionPolicy
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.config import EngineSettings
from ragboost.engine.loading import LoadedModel, load_model, make_engine
from ragboost.engine.runtime.engine import Engine
from ragboost.engine.runtime.request import EngineRequest, SamplingParams
from tests.chunk_cache.prompts import stored_kv
from tests.engine.submitting import Parts, Request, running, watch_steps
from tests.eventually import eventually
from tests.kv_integrity import check_store

STEP = 64
SETTINGS = EngineSettings(
    model=Path("ragboost-tiny"),
    capacity_tokens=2048,
    max_step_tokens=STEP,
    max_running=4,
    max_model_len=2048,
)
SYSTEM = [7] * 3 + list(range(20, 37))


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(SETTINGS)


@pytest.fixture
def engine(loaded: LoadedModel) -> Iterator[Engine]:
    with running(loaded, SETTINGS) as engine:
        yield engine
    assert_nothing_is_held(engine)


def assert_nothing_is_held(engine: Engine) -> None:
    cache = engine.store.cache
    cache.evict(len(cache))
    assert len(cache) == 0, "a block that a request holds is not evicted"


def chunk(number: int, length: int = 40) -> tuple[int, ...]:
    return tuple(40 + (number * 131 + i * i * 7) % 4000 for i in range(length))


def parts_of(numbers: list[int], *, question: int = 1, system: list[int] = SYSTEM) -> Parts:
    chunks = [chunk(number) for number in numbers]
    return Parts(tuple(system), chunks, tuple(range(100 + question, 112 + question)))


def wait_for_chunks(engine: Engine, count: int) -> None:
    scheduler = engine.chunk_filler
    assert scheduler is not None
    eventually(lambda: scheduler.num_stored, equals=count)


def approx(policy: str = "gradual", ratio: float = 0.25) -> ReuseOptions:
    return ReuseOptions(policy, ratio)


def test_chunks_that_a_request_computes_are_reused_by_the_next_one_and_computed_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, pieces = watch(engine, monkeypatch)
    cold = Request(engine, parts_of([1, 2, 3]), reuse=approx()).sources()
    num_decoded = 3
    wait_for_chunks(engine, 3)
    assert pieces == []
    assert sum(map(sum, steps)) == sum(cold) + num_decoded
    warm = Request(engine, parts_of([3, 1, 2], question=2), reuse=approx()).sources()

    assert cold == (0, 0, 0, 20 + 120 + 12)
    # One block of the system prompt is in the prefix cache.
    assert warm == (16, 90, 30, 4 + 12)
    assert engine.chunk_filler is not None
    assert engine.chunk_filler.num_stored == 3, "nothing new"


def test_chunks_behind_the_same_ones_as_before_are_exact(engine: Engine) -> None:
    Request(engine, parts_of([1, 2, 3]), reuse=approx()).finish()
    wait_for_chunks(engine, 3)
    engine.reset_prefix_cache().result()
    again = Request(engine, parts_of([1, 2, 3, 4], question=2), reuse=approx())
    assert again.sources() == (120, 0, 0, 20 + 40 + 12)
    assert again.submitted.exact_until is None
    want = Request(engine, parts_of([1, 2, 3, 4], question=2), reuse=None, salt="other").tokens()
    assert [Request(engine, parts_of([1, 2, 3, 4], question=2)).tokens()] == [want]


def test_a_chunk_that_an_exact_request_computed_is_taken_from_the_prefix_cache(
    engine: Engine,
) -> None:
    Request(engine, parts_of([1, 2]), reuse=None).finish()
    Request(engine, parts_of([1, 2], question=2), reuse=approx()).finish()
    wait_for_chunks(engine, 2)
    assert Request(engine, parts_of([2, 1], question=3), reuse=approx()).sources() == (
        (16, 60, 20, 4 + 12)
    )


def test_a_prompt_whose_chunks_cannot_be_copied_is_answered(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChunkReuse, "take", out_of_memory)
    outputs = Request(engine, parts_of([1, 2]), reuse=approx()).finish()
    assert [output.finish_reason for output in outputs] == [None, None, None, "length"]


def test_the_exact_prefix_comes_before_stored_chunks(engine: Engine) -> None:
    Request(engine, parts_of([1, 2, 3]), reuse=approx()).finish()
    wait_for_chunks(engine, 3)
    again = Request(engine, parts_of([1, 2, 4, 3], question=2), reuse=approx()).sources()

    # 6 blocks of the first 100 tokens are in the prefix cache, and chunk 2 is exact behind chunk 1.
    assert again == (100, 30, 10, 40 + 12)


def test_the_engine_gives_what_chunk_reuse_gives_by_itself(engine: Engine) -> None:
    Request(engine, parts_of([1, 2, 3]), reuse=approx()).finish()
    wait_for_chunks(engine, 3)
    assert engine.chunk_filler is not None
    reuse = engine.chunk_filler.reuse
    for policy in ("gradual", "mean-layers", "epic", "anchored", "cacheblend"):
        engine.reset_prefix_cache().result()
        parts = parts_of([2, 3, 1])
        got = Request(engine, parts, reuse=approx(policy, 0.3)).tokens()[0]
        alone = reuse.prefill(parts.system, parts.chunks, parts.question, policy=policy, ratio=0.3)
        assert got == int(alone.logits.argmax()), policy


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_runs_in_the_engine_and_its_tokens_add_up(engine: Engine, policy: str) -> None:
    assert engine.chunk_filler is not None
    for number in (1, 2, 3):
        if policy in MEASURED:
            engine.chunk_filler.reuse.measure(
                SYSTEM,
                chunk(number),
                neighbours=[chunk(number % 3 + 1)],
            )
    engine.chunk_filler.reuse.precompute(SYSTEM, [chunk(1), chunk(2), chunk(3)])
    request = Request(engine, parts_of([3, 2, 4, 1]), reuse=approx(policy, 0.25))
    recomputed = {"full": 80, "reuse": 0}.get(policy, 20)
    assert request.sources() == (40, 80 - recomputed, recomputed, 20 + 40 + 12)


def test_recomputing_everything_is_exact_and_may_be_shared(engine: Engine) -> None:
    want = Request(engine, parts_of([3, 1, 2]), reuse=None).tokens()
    engine.reset_prefix_cache().result()
    Request(engine, parts_of([1, 2, 3]), reuse=approx()).finish()
    wait_for_chunks(engine, 3)
    engine.reset_prefix_cache().result()

    whole = Request(engine, parts_of([3, 1, 2]), reuse=approx(ratio=1.0))
    assert whole.tokens() == want
    assert whole.submitted.exact_until is None
    again = Request(engine, parts_of([3, 1, 2]), reuse=None).finish()
    assert [output.token_id for output in again] == want
    assert again[-1].cached_tokens == 144


@pytest.mark.parametrize("ratio", [0.0, 0.25])
def test_approximate_kv_is_invisible_to_exact_requests(engine: Engine, ratio: float) -> None:
    """Neither its prompt nor what was generated over it enters the prefix cache."""
    exact = Request(engine, parts_of([3, 1, 2]), reuse=None, max_tokens=40).tokens()
    assert engine.chunk_filler is not None
    engine.chunk_filler.reuse.precompute(SYSTEM, [chunk(1), chunk(2), chunk(3)])
    engine.reset_prefix_cache().result()

    request = Request(engine, parts_of([3, 1, 2]), reuse=approx(ratio=ratio), max_tokens=40)
    request.finish()
    after = Request(engine, parts_of([3, 1, 2]), reuse=None, max_tokens=40).finish()

    assert request.submitted.exact_until == 60
    assert after[0].cached_tokens == 48, "system prompt and first chunk, in whole blocks"
    assert [output.token_id for output in after] == exact


def test_concurrent_requests_that_share_chunks_do_not_disturb_each_other(engine: Engine) -> None:
    assert engine.chunk_filler is not None
    engine.chunk_filler.reuse.precompute(SYSTEM, [chunk(number) for number in range(1, 5)])
    orders = [[1, 2, 3, 4], [4, 3, 2, 1], [2, 4, 1, 3], [3, 3, 1], [2, 5, 1, 4], [4, 1]]
    policies = ["gradual", "anchored", "epic", "a3", "cacheblend", "mean-layers"]

    def start(number: int) -> Request:
        how = approx(policies[number], 0.3) if number != 3 else None
        return Request(engine, parts_of(orders[number]), reuse=how, max_tokens=12)

    alone = []
    for number in range(len(orders)):
        engine.reset_prefix_cache().result()
        alone.append(start(number).tokens())
    engine.reset_prefix_cache().result()
    together = [start(number) for number in range(len(orders))]
    assert [request.tokens() for request in together] == alone


def test_decoding_goes_on_while_another_request_chooses_and_computes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step has at most the budget in rows, whatever it does; so have pieces between steps."""
    assert engine.chunk_filler is not None
    numbers = list(range(1, 21))
    engine.chunk_filler.reuse.precompute(SYSTEM, [chunk(number) for number in numbers])
    steps, pieces = watch(engine, monkeypatch)
    decoding = Request(engine, parts_of([30]), reuse=None, max_tokens=1500)
    decoding.next()
    assert Request(engine, parts_of(numbers[::-1]), reuse=approx()).sources()[1] > 500
    engine.abort(decoding.submitted)

    layers = engine.chunk_filler.reuse.adapter.num_layers
    mixed = [rows for rows in steps if len(rows) == 2 and rows[0] == 1]
    assert mixed, "the question came in a step, beside a decode row"
    assert max(sum(rows) for rows in steps) <= STEP
    assert len(pieces) >= (800 + 200) / STEP, (
        "the choice of rows and the chosen rows came in pieces"
    )
    assert max(pieces) <= STEP * layers, "pieces that go through one layer of two are longer"
    # Between two pieces of work of the other request there was a step of this one.
    assert len([rows for rows in steps if rows[0] == 1]) >= len(pieces)


def watch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[int]], list[int]]:
    """Note the rows of each step, and of each piece between steps."""
    steps = watch_steps(engine, monkeypatch)
    pieces: list[int] = []
    assert engine.chunk_filler is not None
    adapter = engine.chunk_filler.reuse.adapter

    class Watched(ModelAdapter):
        """The real adapter."""

        def __init__(self) -> None:
            self.__dict__.update(adapter.__dict__)

        def forward(self, tokens, *args, **kwargs):  # type: ignore[no-untyped-def]
            pieces.append(len(tokens))
            return adapter.forward(tokens, *args, **kwargs)

    engine.chunk_filler.reuse.adapter = Watched()
    return steps, pieces


def test_a_selection_that_fails_fails_its_request_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine.chunk_filler is not None
    engine.chunk_filler.reuse.precompute(SYSTEM, [chunk(1), chunk(2)])
    decoding = Request(engine, parts_of([30]), reuse=None, max_tokens=1500)
    decoding.next()
    with monkeypatch.context() as patch:
        patch.setattr(SelectionPolicy, "select", out_of_memory)
        failed = Request(engine, parts_of([2, 1]), reuse=approx()).finish()
    assert [output.finish_reason for output in failed] == ["error"]
    assert Request(engine, parts_of([2, 1]), reuse=approx()).sources() == (56, 30, 10, 4 + 12)
    assert decoding.submitted.finish_reason is None
    engine.abort(decoding.submitted)


def out_of_memory(*_args: object, **_options: object) -> None:
    raise torch.OutOfMemoryError("simulated")


@pytest.mark.parametrize("is_cold", [True, False])
def test_abort_frees_everything_at_any_stage(loaded: LoadedModel, is_cold: bool) -> None:
    """Stepped by hand: abort after each possible number of steps."""
    for num_steps in range(12):
        engine = make_engine(loaded, SETTINGS)
        scheduler, chunk_filler = engine.scheduler, engine.chunk_filler
        assert chunk_filler is not None
        if not is_cold:
            chunk_filler.reuse.precompute(SYSTEM, [chunk(number) for number in range(1, 9)])
        parts = parts_of(list(range(1, 9)))
        request = EngineRequest(
            parts.reusing(approx()),
            SamplingParams(max_tokens=2, temperature=0),
            emit=lambda _output: None,
        )
        scheduler.add(request)
        for _ in range(num_steps):
            scheduler.step()
        scheduler.abort(request)
        assert request.kv is None
        assert not scheduler.running
        assert_nothing_is_held(engine)
        scheduler.close()
        assert not scheduler.has_work


def test_stored_chunks_are_bounded_and_evicted_ones_computed(loaded: LoadedModel) -> None:
    bytes_per_token = loaded.runner.layout.bytes_per_token
    settings = SETTINGS.model_copy(update={"chunks": {"host_bytes": 110 * bytes_per_token}})
    engine = make_engine(loaded, settings)
    engine.start()
    Request(engine, parts_of([1, 2, 3]), reuse=approx()).finish()
    wait_for_chunks(engine, 3)
    assert engine.chunk_filler is not None
    store = engine.chunk_filler.reuse.store
    assert isinstance(store, TieredStore)
    check_store(store)
    assert store.memory.size_bytes <= 110 * bytes_per_token
    sources = Request(engine, parts_of([3, 2, 1], question=3), reuse=approx()).sources()
    assert sum(sources) == 152
    assert sources[3] >= 40 + 12
    engine.stop()


def test_where_few_tokens_are_stored_everything_is_computed_and_exact(engine: Engine) -> None:
    """40 stored tokens do not pay for filling up to 100 missing ones; for 36 they do."""
    assert engine.chunk_filler is not None
    engine.chunk_filler.reuse.precompute(SYSTEM, [chunk(1)])
    few = Request(engine, parts_of([7, 8, 1, 9], question=3), reuse=approx())
    assert few.sources() == (0, 0, 0, 20 + 160 + 12)
    assert few.submitted.exact_until is None
    parts = Parts(tuple(SYSTEM), [chunk(10, 32), chunk(1), chunk(11)], (8, *range(100, 111)))
    enough = Request(engine, parts, reuse=approx("mean-layers"))
    assert enough.sources() == (16, 30, 10, 4 + 32 + 40 + 12)
    assert enough.submitted.exact_until == 52


def test_salts_do_not_share_chunks(engine: Engine) -> None:
    def sources(order: list[int], salt: str | None) -> tuple[int, int, int, int]:
        return Request(engine, parts_of(order), reuse=approx(), salt=salt).sources()

    for number, salt in enumerate((None, "a", "b"), 1):
        assert sources([1, 2], salt) == (0, 0, 0, 112)
        wait_for_chunks(engine, 2 * number)
        assert sources([2, 1], salt)[:3] == (16, 60, 20)


def test_requests_leave_stored_chunks_as_they_are(engine: Engine) -> None:
    assert engine.chunk_filler is not None
    reuse = engine.chunk_filler.reuse
    chunks = [chunk(number) for number in (1, 2, 3)]
    reuse.precompute(SYSTEM, chunks)
    stored = [stored_kv(reuse, list(each)) for each in [*chunks, SYSTEM]]
    tensors = [t for kv in stored if kv is not None for layer in kv.layers for t in layer]
    before = [tensor.clone() for tensor in tensors]
    for policy in ("gradual", "anchored", "reuse", "full"):
        engine.reset_prefix_cache().result()
        Request(engine, parts_of([3, 1, 2]), reuse=approx(policy), max_tokens=20).finish()
    assert len(tensors) == 4 * 2 * 2
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


def test_a_policy_that_the_model_is_too_small_for_computes_everything(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    assert engine.chunk_filler is not None
    engine.chunk_filler.reuse.precompute(SYSTEM, [chunk(1), chunk(2)])
    engine.chunk_filler.reuse.adapter.num_layers = 1
    try:
        request = Request(engine, parts_of([2, 1]), reuse=approx("a3"))
        exact, approximate, recomputed, computed = request.sources()
    finally:
        engine.chunk_filler.reuse.adapter.num_layers = 2
    assert (exact, approximate, recomputed, computed) == (0, 0, 0, 112)
    assert "this policy needs layer 1" in caplog.text


def test_token_prompts_with_text_between_chunks_add_up(engine: Engine) -> None:
    question = (5, 8, *range(100, 112))
    parts = Parts(tuple(SYSTEM), [chunk(1), chunk(2)], question, [(5, 6)])
    Request(engine, parts, reuse=approx()).finish()
    wait_for_chunks(engine, 2)
    moved = Parts(tuple(SYSTEM), [chunk(2), chunk(1)], (5, 9, *question[2:]), [(5, 6)])
    request = Request(engine, moved, reuse=approx(ratio=0.5))
    assert request.sources() == (16, 40, 40, 4 + 2 + 14)


def test_a_store_that_cannot_load_ahead_does_not_end_the_engine(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TieredStore, "prefetch", out_of_memory)
    assert Request(engine, parts_of([1, 2]), reuse=approx()).sources() == (0, 0, 0, 112)
    assert engine.is_healthy


def test_kv_of_weights_that_were_changed_in_place_is_not_reused_after_a_reset() -> None:
    loaded = load_model(SETTINGS)
    prompt = parts_of([1, 2])
    with running(loaded, SETTINGS) as engine:
        Request(engine, prompt, reuse=approx()).finish()
        wait_for_chunks(engine, 2)
        engine.reset_prefix_cache().result()
        stored = Request(engine, prompt, reuse=approx()).sources()
        with torch.no_grad():
            loaded.runner.model.get_input_embeddings().weight.mul_(-1.5)
        engine.reset_prefix_cache().result()

        renewed = Request(engine, prompt, reuse=approx())
        sources = renewed.sources()
        engine.reset_prefix_cache().result()
        plain = Request(engine, prompt.token_ids).tokens()

    assert stored[0] + stored[1] > 0
    assert sources[:3] == (0, 0, 0)
    assert renewed.submitted.token_ids[len(prompt.token_ids) :] == plain
