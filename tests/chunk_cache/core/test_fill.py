"""The KV that an engine takes over equals that of `ChunkReuse` for the same chunks and options."""

import pytest
import torch

from ragboost.chunk_cache.core.fill import FilledPrompt, fill_steps
from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.prompt_plan import PromptPlan, find_chunks, plan_prompt
from ragboost.chunk_cache.core.request import EngineChunkRequest
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.pace import Pace, at_once
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.chunk_cache.families import build_adapter, make_prompt
from tests.chunk_cache.prompts import exact_prefix, learn, make_library, make_request


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter("qwen3-qk-norm")


@pytest.fixture
def library(adapter: ModelAdapter) -> ChunkLibrary:
    return make_library(adapter)


def plan(
    library: ChunkLibrary, request: EngineChunkRequest, tokens: list[int], *, prefix_tokens: int = 0
) -> PromptPlan:
    keys = find_chunks(request, tokens, library)
    found = plan_prompt(request, tokens, prefix_tokens=prefix_tokens, keys=keys, library=library)
    assert isinstance(found, PromptPlan), found
    return found


def fill(
    adapter: ModelAdapter, planned: PromptPlan, *, prefix: ChunkKV | None = None, rows: int = 1000
) -> FilledPrompt:
    return at_once(fill_steps(adapter, planned, prefix=prefix, backend=None, pace=Pace(rows)))


def logits_after(adapter: ModelAdapter, planned: PromptPlan, filled: FilledPrompt) -> torch.Tensor:
    """Prefill the rest of the prompt, as the engine does."""
    rows = torch.arange(planned.stop, len(planned.tokens))
    rest = planned.tokens[planned.stop :]
    logits = adapter.forward(rest, filled.cache, plan=ForwardPlan(rows))
    assert logits is not None
    return logits


@pytest.mark.parametrize("policy", ["gradual", "a3", "fusionrag", "cacheblend", "epic"])
@pytest.mark.parametrize("ratio", [0.0, 0.25, 1.0])
def test_the_next_tokens_logits_are_those_of_chunk_reuse(
    adapter: ModelAdapter, library: ChunkLibrary, policy: str, ratio: float
) -> None:
    system, chunks, question = make_prompt()
    learn(library, adapter, system, chunks)
    reuse = ChunkReuse(adapter, TieredStore(), backend=None)
    reuse.precompute(system, chunks)
    order = [chunks[2], chunks[0], chunks[1]]

    request, tokens = make_request(system, order, question, policy=policy, ratio=ratio)
    planned = plan(library, request, tokens)
    filled = fill(adapter, planned, rows=16)
    wanted = reuse.prefill(system, order, question, policy=policy, ratio=ratio)

    assert filled.selected == wanted.selected
    torch.testing.assert_close(
        logits_after(adapter, planned, filled), wanted.logits, atol=1e-4, rtol=1e-4
    )


def test_the_counts_add_up_to_the_prompt(adapter: ModelAdapter, library: ChunkLibrary) -> None:
    system, chunks, question = make_prompt()
    learn(library, adapter, system, chunks[:3])
    request, tokens = make_request(system, chunks[::-1], question, policy="epic", ratio=0.25)

    planned = plan(library, request, tokens)
    filled = fill(adapter, planned)

    missing = sum(map(len, chunks[3:]))
    stored = sum(map(len, chunks[:3]))
    recomputed = round(0.25 * stored)
    assert (filled.counts.exact, filled.counts.recomputed) == (0, recomputed)
    assert filled.counts.reused == stored - recomputed
    assert filled.counts.computed == len(system) + missing + len(question)


def test_an_exact_prefix_may_end_within_a_chunk(
    adapter: ModelAdapter, library: ChunkLibrary
) -> None:
    system, chunks, question = make_prompt()
    learn(library, adapter, system, chunks)
    request, tokens = make_request(system, chunks[::-1], question, ratio=1.0)
    prefix_tokens = len(system) + len(chunks[-1]) + 5

    planned = plan(library, request, tokens, prefix_tokens=prefix_tokens)
    filled = fill(adapter, planned, prefix=exact_prefix(adapter, tokens[:prefix_tokens]))

    cache = adapter.empty_cache(len(tokens))
    ordinary = adapter.forward(tokens, cache, plan=ForwardPlan(torch.arange(len(tokens))))
    assert ordinary is not None
    assert filled.counts.exact == prefix_tokens
    torch.testing.assert_close(
        logits_after(adapter, planned, filled), ordinary, atol=1e-4, rtol=1e-4
    )


def test_text_between_the_chunks_is_computed(adapter: ModelAdapter, library: ChunkLibrary) -> None:
    system, chunks, question = make_prompt()
    learn(library, adapter, system, chunks)
    gap = [5, 6, 7]
    parts = [chunks[1], gap, chunks[0], gap, chunks[2]]
    request, tokens = make_request(system, parts, question, ratio=0.0)
    only = EngineChunkRequest(request.chunks[::2], ratio=0.0)

    planned = plan(library, only, tokens)
    filled = at_once(fill_steps(adapter, planned, prefix=None, backend=None))

    assert filled.counts.computed == len(system) + 2 * len(gap) + len(question)


def test_a_shifted_position_finds_nothing(adapter: ModelAdapter, library: ChunkLibrary) -> None:
    system, chunks, question = make_prompt()
    learn(library, adapter, system, chunks)
    request, tokens = make_request(system, chunks, question)
    shifted = EngineChunkRequest(tuple((start + 1, stop) for start, stop in request.chunks))
    keys = find_chunks(shifted, tokens, library)

    planned = plan_prompt(shifted, tokens, prefix_tokens=0, keys=keys, library=library)

    assert planned == "nothing_stored"


def test_a_prompt_that_is_mostly_missing_is_left_to_the_engine(
    adapter: ModelAdapter, library: ChunkLibrary
) -> None:
    system, chunks, question = make_prompt()
    learn(library, adapter, system, chunks[-1:])
    request, tokens = make_request(system, chunks, question)
    keys = find_chunks(request, tokens, library)

    assert (
        plan_prompt(request, tokens, prefix_tokens=0, keys=keys, library=library)
        == "mostly_missing"
    )


def test_the_last_token_is_left_to_the_engine(adapter: ModelAdapter, library: ChunkLibrary) -> None:
    system, chunks, _ = make_prompt()
    learn(library, adapter, system, chunks)
    request, tokens = make_request(system, chunks[::-1], [])

    planned = plan(library, request, tokens)

    assert planned.stop == len(tokens) - len(chunks[0])
    assert planned.question == len(tokens) - 1


@pytest.mark.parametrize("policy", ["gradual", "fusionrag"])
def test_a_filling_in_steps_of_any_length_gives_the_same_kv(
    adapter: ModelAdapter, library: ChunkLibrary, policy: str
) -> None:
    system, chunks, question = make_prompt()
    learn(library, adapter, system, chunks)
    request, tokens = make_request(system, chunks[::-1], question, policy=policy, ratio=0.4)
    planned = plan(library, request, tokens)
    at_once = fill(adapter, planned)

    pace, counts = Pace(1000), []
    steps = fill_steps(adapter, planned, prefix=None, backend=None, pace=pace)
    while True:
        pace.limit(3 + len(counts))
        try:
            counts.append(next(steps))
        except StopIteration as done:
            filled = done.value
            break

    assert len(counts) > 5
    assert sum(counts) >= filled.counts.recomputed
    assert filled.selected == at_once.selected
    for one, other in zip(filled.cache.layers, at_once.cache.layers, strict=True):
        stop = planned.stop
        torch.testing.assert_close(one.keys[:, :, :stop], other.keys[:, :, :stop])
        torch.testing.assert_close(one.values[:, :, :stop], other.values[:, :, :stop])
