"""An engine's filler measures its own fillings and the engine's passes."""

import time

import pytest
import torch

from ragboost.chunk_cache.core.prompt_plan import PromptPlan, find_chunks, plan_prompt
from ragboost.chunk_cache.core.reusing_request import ChunkCapture
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.core.slot_filler import SlotFiller
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.chunk import KV
from tests.chunk_cache.families import build_adapter, make_prompt
from tests.chunk_cache.prompts import learn, make_request


class ListFiller(SlotFiller):
    """A filler of slots that hold zeros."""

    def read_layer(self, number: int, slots: torch.Tensor) -> KV:
        heads, key_dim, value_dim = self.model.kv_shapes[number]
        return torch.zeros(1, heads, len(slots), key_dim), torch.zeros(
            1, heads, len(slots), value_dim
        )

    def write_layer(self, number: int, kv: KV, slots: torch.Tensor) -> None:
        pass


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter("qwen3-qk-norm")


def make_filler(adapter: ModelAdapter, fill: str = "faster") -> ListFiller:
    settings = EngineChunkSettings.read({"fill": fill})
    return ListFiller(adapter, settings=settings, rows=1000)  # type: ignore[arg-type]


def test_a_filling_in_pieces_is_one_sample_with_the_time_of_all(adapter: ModelAdapter) -> None:
    filler = make_filler(adapter)
    system, chunks, question = make_prompt()
    learn(filler.library, adapter, system, chunks)
    request, tokens = make_request(system, chunks, question)
    keys = find_chunks(request, tokens, filler.library)
    plan = plan_prompt(request, tokens, prefix_tokens=0, keys=keys, library=filler.library)
    assert isinstance(plan, PromptPlan)
    steps, filled, num_pieces = filler.begin(plan, torch.arange(0)), None, 0

    while filled is None:
        filled = filler.advance(steps, rows=5)
        num_pieces += 1
    filler.finish(plan, filled, torch.arange(plan.stop))

    assert num_pieces > 1
    assert filler.speed is not None
    assert filler.speed.filling.num_samples == 1
    assert filler.speed.filling._sums[2] == pytest.approx(filler.library.fill_seconds)


@pytest.mark.parametrize("num_chunks", [0, 2])
def test_a_pass_is_one_sample_however_many_chunks_are_taken(
    adapter: ModelAdapter, num_chunks: int
) -> None:
    filler = make_filler(adapter)
    filler.note_pass(40, began=time.perf_counter())
    filler.end_pass()
    for number in range(num_chunks):
        tokens = list(range(10 * number + 10))
        chunk = ChunkCapture(f"{number}", tokens, 10 * number, True, False)
        filler.capture(chunk, torch.arange(10))
    filler.note_pass(40, began=time.perf_counter(), is_sample=False)  # with a filling in it
    filler.end_pass()

    assert filler.speed is not None
    assert filler.speed.computing.num_samples == 1


@pytest.mark.parametrize("is_timed", [False, True])
def test_only_chunks_that_a_pass_has_computed_take_a_share_of_its_time(
    adapter: ModelAdapter, is_timed: bool
) -> None:
    filler = make_filler(adapter)
    filler.note_pass(4, began=time.perf_counter())
    chunk = ChunkCapture("chunk", list(range(10)), 0, True, True, is_timed)
    assert (filler.capture(chunk, torch.arange(10)).compute_s is not None) == is_timed


def test_where_all_is_filled_nothing_is_measured(adapter: ModelAdapter) -> None:
    assert make_filler(adapter, "always").speed is None
