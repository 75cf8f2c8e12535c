"""The engine thread and its scheduler, without HTTP."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from ragboost.config import EngineSettings
from ragboost.engine.builtin import build_tokenizer
from ragboost.engine.loading import LoadedModel, load_model, make_engine
from ragboost.engine.runtime.engine import Engine
from ragboost.engine.runtime.model_runner import ModelRunner
from ragboost.engine.runtime.request import (
    EngineRequest,
    Output,
    PromptTokens,
    SamplingParams,
    sample,
)
from ragboost.errors import ConfigError
from tests.engine.submitting import Request, running, watch_steps
from tests.kv_integrity import check_blocks

SETTINGS = EngineSettings(
    model=Path("ragboost-tiny"),
    capacity_tokens=512,
    block_size=16,
    max_running=3,
    max_step_tokens=64,
    max_model_len=1024,
)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(SETTINGS)


@pytest.fixture
def engine(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr("ragboost.engine.loading._MAX_WAITING", 4)
    with running(loaded, SETTINGS) as engine:
        yield engine


def prompt(length: int, *, first: int = 10) -> list[int]:
    return [10 + (first * 31 + i * i) % 1000 for i in range(length)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"engine\.device cuda: torch finds no GPU here"):
        load_model(SETTINGS.model_copy(update={"device": "cuda"}))


def test_generated_tokens_are_reused_by_the_next_turn(engine: Engine) -> None:
    answer = Request(engine, prompt(40), max_tokens=40).finish()
    tokens = [output.token_id for output in answer if output.token_id is not None]
    turn_2 = Request(engine, [*prompt(40), *tokens, 5, 6, 7]).finish()
    assert turn_2[0].cached_tokens == 64, "79 of the 80 tokens were computed, in 4 full blocks"


def test_concurrent_equal_prompts_are_prefilled_once(engine: Engine) -> None:
    requests = [Request(engine, prompt(200)) for _ in range(3)]
    cached = [request.finish()[-1].cached_tokens for request in requests]
    assert cached[0] == 0
    assert min(cached[1:]) >= 128
    assert len(engine.store.cache) == 12


def test_batched_requests_give_what_they_give_alone(engine: Engine) -> None:
    prompts = [prompt(30 + 37 * i, first=i) for i in range(5)]
    together = [Request(engine, ids, max_tokens=6) for ids in prompts]
    batched = [[output.token_id for output in request.finish()] for request in together]
    engine.reset_prefix_cache().result()
    alone = [
        [output.token_id for output in Request(engine, ids, max_tokens=6).finish()]
        for ids in prompts
    ]
    assert batched == alone


def test_long_prefill_does_not_stop_decoding(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = watch_steps(engine, monkeypatch)
    decoding = Request(engine, prompt(20), max_tokens=900)
    decoding.next()
    Request(engine, prompt(640, first=3), max_tokens=1).finish()
    engine.abort(decoding.submitted)
    mixed = [rows for rows in steps if len(rows) == 2]
    assert len(mixed) >= 10, "the prefill came in chunks, each beside a decode row"
    assert all(rows[0] == 1 and sum(rows) <= 64 for rows in mixed)


def test_abort_frees_blocks_and_room(engine: Engine) -> None:
    requests = [Request(engine, prompt(64, first=i), max_tokens=900) for i in range(7)]
    assert all(request.is_accepted for request in requests)
    assert not Request(engine, prompt(10)).is_accepted, "3 may run and 4 may wait"
    requests[0].next()
    for request in requests:
        engine.abort(request.submitted)
    engine.reset_prefix_cache().result()  # commands are obeyed in order
    assert engine.num_running == engine.num_waiting == 0
    assert all(request.submitted.kv is None for request in requests)
    assert Request(engine, prompt(10)).finish()[-1].finish_reason == "length"


def test_capacity_bounds_the_cache_not_the_requests(engine: Engine) -> None:
    assert Request(engine, prompt(700)).finish()[-1].finish_reason == "length"
    assert engine.store.usage == 1.0
    assert Request(engine, prompt(700)).finish()[0].cached_tokens == 512


def test_reset_while_running_leaves_the_answer_unchanged(engine: Engine) -> None:
    expected = [output.token_id for output in Request(engine, prompt(64), max_tokens=60).finish()]
    request = Request(engine, prompt(64), max_tokens=60)
    tokens = [request.next().token_id]
    engine.reset_prefix_cache().result()
    tokens += [output.token_id for output in request.finish()]
    assert tokens == expected
    assert Request(engine, prompt(64)).finish()[0].cached_tokens == 0


def test_stopping_fails_what_is_running(loaded: LoadedModel) -> None:
    engine = make_engine(loaded, SETTINGS)
    engine.start()
    request = Request(engine, prompt(64), max_tokens=900)
    request.next()
    engine.stop()
    assert request.finish()[-1].finish_reason == "error"
    assert not Request(engine, prompt(10)).is_accepted


POISON = 3


class NoMemory:
    """A forward that fails like a full device whenever it computes the token `POISON`."""

    def __init__(self, runner: ModelRunner, *, error: type[Exception]) -> None:
        self._forward, self._error = runner.forward, error
        self.num_failed = 0
        self.may_begin = threading.Event()

    def __call__(self, token_ids: Sequence[int], *args: Any, **options: Any) -> torch.Tensor:
        self.may_begin.wait()
        if POISON in token_ids:
            self.num_failed += 1
            raise self._error("out of memory")
        return self._forward(token_ids, *args, **options)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError, IndexError, ValueError])
def test_a_failing_request_fails_alone_and_the_engine_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    alone = [Request(engine, prompt(40, first=i), max_tokens=20).tokens() for i in range(2)]
    engine.reset_prefix_cache().result()
    forward = NoMemory(engine.runner, error=error)
    monkeypatch.setattr(engine.runner, "forward", forward)
    first = Request(engine, prompt(40, first=0), max_tokens=20)
    failing = Request(engine, [*prompt(20), POISON, *prompt(100)])
    second = Request(engine, prompt(40, first=1), max_tokens=20)
    forward.may_begin.set()

    assert failing.finish() == [Output(None, "error", 0)]
    assert [first.tokens(), second.tokens()] == alone
    assert forward.num_failed == 1
    assert failing.submitted.kv is None
    assert not failing.submitted.held
    assert engine.is_healthy
    assert Request(engine, prompt(40, first=0), max_tokens=20).tokens() == alone[0]
    engine.stop()
    engine.store.cache.evict(512)
    assert len(engine.store.cache) == 0, "no block is held"


def test_memory_that_is_short_anywhere_fails_one_request_and_leaves_no_block_without_kv(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = Request(engine, prompt(100)).tokens()
    for owner, name in (
        (engine.runner, "new_kv"),
        (engine.store._pool, "load"),
        (engine.store._pool, "store"),
        (EngineRequest, "append"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, raising(MemoryError("short")))
            tail = prompt(60, first=9)
            failed = Request(engine, [*prompt(100), *tail]).finish()
        assert failed[-1].finish_reason == "error", name
        check_blocks(engine.store.cache)
        assert Request(engine, prompt(100)).tokens() == want, name
        assert Request(engine, [*prompt(100), *tail]).finish()[-1].finish_reason == "length"
        engine.reset_prefix_cache().result()
        assert Request(engine, prompt(100)).tokens() == want


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_args: object, **_options: object) -> None:
        raise error

    return fail


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_broken_invariant_fails_all_requests_and_the_engines_health(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = NoMemory(loaded.runner, error=AssertionError)
    monkeypatch.setattr(loaded.runner, "forward", forward)
    engine = make_engine(loaded, SETTINGS)
    engine.start()
    requests = [Request(engine, [POISON, *prompt(64)]) for _ in range(2)]
    forward.may_begin.set()
    assert [request.finish()[-1] for request in requests] == [Output(None, "error", 0)] * 2
    assert not engine.is_healthy
    assert not Request(engine, prompt(10)).is_accepted
    engine.reset_prefix_cache().result()
    engine.stop()


def test_requests_wait_until_their_kv_fits_beside_that_of_the_running_ones(
    loaded: LoadedModel,
) -> None:
    """Stepped by hand: two of 100 tokens fit into 250, a third and a small one behind it wait."""
    settings = SETTINGS.model_copy(update={"max_running_tokens": 250})
    engine = make_engine(loaded, settings)
    requests = [
        EngineRequest(
            PromptTokens(prompt(60, first=number)),
            SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            emit=lambda _output: None,
        )
        for number, max_tokens in enumerate((40, 40, 40, 1, 900))
    ]
    for request in requests:
        engine.scheduler.add(request)
    seen = set()
    while engine.scheduler.has_work:
        engine.scheduler.step()
        running = engine.scheduler.running
        seen.add(tuple(requests.index(request) for request in running))
        assert len(running) == 1 or sum(r.max_kv_tokens for r in running) <= 250
    assert (0, 1) in seen
    assert (4,) in seen, "one that needs more than there is runs by itself"
    assert all(request.finish_reason == "length" for request in requests)


def test_top_p_keeps_only_the_nucleus_and_a_seed_repeats() -> None:
    logits = torch.tensor([0.6, 0.3, 0.1]).log()
    params = SamplingParams(top_p=0.85, seed=3)
    generator = params.generator()
    tokens = [sample(logits, params, generator) for _ in range(200)]
    again = params.generator()
    assert set(tokens) == {0, 1}
    assert tokens == [sample(logits, params, again) for _ in range(200)]


@pytest.mark.parametrize("options", [{"temperature": 1e-320}, {"top_p": 1e-320}])
def test_the_smallest_temperature_and_nucleus_are_greedy(options: dict[str, float]) -> None:
    logits = torch.tensor([-300.0, 300.0, 299.0])
    params = SamplingParams(seed=3, **options)
    assert {sample(logits, params, params.generator()) for _ in range(20)} == {1}


def test_bad_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="/nonexistent is no directory, no name on the hub"):
        load_model(EngineSettings(model="/nonexistent"))
    with pytest.raises(ConfigError, match="max_model_len must be at most 32768"):
        load_model(SETTINGS.model_copy(update={"max_model_len": 99_999}))
    with pytest.raises(ConfigError, match=r"at least engine\.block_size"):
        make_engine(load_model(SETTINGS), SETTINGS.model_copy(update={"block_size": 4096}))


def test_model_directory_is_served_under_its_name(tmp_path: Path) -> None:
    path = tmp_path / "tiny-qwen"
    config = Qwen2Config(
        vocab_size=4096,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=2,
    )
    Qwen2ForCausalLM(config).save_pretrained(path)
    build_tokenizer().save_pretrained(path)
    loaded = load_model(EngineSettings(model=path))
    assert loaded.name == "tiny-qwen"
    assert loaded.runner.max_length == 512
    assert loaded.stop_ids == {2}
    engine = make_engine(loaded, SETTINGS)
    engine.start()
    Request(engine, prompt(64)).finish()
    assert Request(engine, prompt(64)).finish()[-1].cached_tokens == 48
    engine.stop()
    text = loaded.tokenizer.render_chat([{"role": "user", "content": "Hi"}])
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
