"""Compare reuse with ordinary forward passes, once, before the first request. Any difference beyond
rounding keeps reuse off: a new version or kernel must never give wrong KV."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from ragboost.chunk_cache.core.fill import filled_error, largest_error
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.core.slot_filler import SlotFiller
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.attention.tiled import TiledAttention
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.model.reusable_model import ReusableModel, probe_tokens
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import UnsupportedModelError

logger = logging.getLogger(__name__)

LENGTH = 64
_PREFIX = 40
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}
"""Maximum errors by dtype; 0.05 for lower precisions."""
NOISE_FACTOR, MOST_NOISE = 3.0, 4.0
"""Moved keys may differ by three times what the values do, and by four times the maximum error."""


class SelfTest(NamedTuple):
    """Measured errors, relative to the largest value."""

    full_error: float  # of the logits with every token computed through the reuse path
    resumed_error: float  # of the logits with stored system prompt and first chunk
    moved_error: float  # of moved keys against keys computed at the same position


@torch.no_grad()  # type: ignore[untyped-decorator]
def self_test(adapter: ModelAdapter) -> SelfTest:
    """Run the reuse path on 64 tokens. Raises `UnsupportedModelError`, which names the error."""
    tokens = probe_tokens(LENGTH, int(adapter.config.vocab_size))
    ids = torch.tensor([tokens], device=adapter.device)
    ordinary = adapter.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]
    reuse = ChunkReuse(adapter, TieredStore())
    system, chunk, question = tokens[:8], tokens[8:40], tokens[40:]
    full = reuse.prefill(system, [chunk], question, ratio=1.0)
    reuse.precompute(system, [chunk])
    resumed = reuse.prefill(system, [chunk], question, ratio=0.0)
    moved_error, noise = _moved_errors(adapter, reuse, system, chunk)
    result = SelfTest(
        full_error=largest_error([full.logits], [ordinary]),
        resumed_error=largest_error([resumed.logits], [ordinary]),
        moved_error=moved_error,
    )
    check_errors(adapter, result._asdict(), moved_error=NOISE_FACTOR * noise)
    return result


def check_errors(model: ReusableModel, errors: Mapping[str, float], **noise: float) -> None:
    """Raise `UnsupportedModelError`, which names the error, if one exceeds the model's limit, and
    the model's own `noise` in this error, as far as that is believed."""
    tolerance = TOLERANCE.get(model.dtype, 0.05)
    for name, value in errors.items():
        limit = max(tolerance, min(noise.get(name, 0.0), MOST_NOISE * tolerance))
        if not value <= limit:
            raise UnsupportedModelError(
                f"{model.name}: {name} is {value:.2g}, the limit is {limit:.2g}; chunk reuse stays "
                "off for this model"
            )


def _moved_errors(
    adapter: ModelAdapter, reuse: ChunkReuse, system: list[int], chunk: list[int]
) -> tuple[float, float]:
    """Compare a chunk's keys, moved behind a longer text, with keys computed there; and its values,
    which do not move: they differ by what the model's own rounding makes of other positions."""
    shift = LENGTH
    other = [(token + 1) % int(adapter.config.vocab_size) for token in (system + chunk) * 2]
    moved = reuse.assemble(system, [other[:shift], chunk], [0]).cache
    start = len(system) + shift
    cache = adapter.empty_cache(len(system) + len(chunk))
    rows = torch.arange(len(system) + len(chunk), device=adapter.device)
    cache.positions = rows + shift
    adapter.forward([*system, *chunk], cache, plan=ForwardPlan(rows))
    stop = start + len(chunk)
    errors = [
        largest_error(
            [getattr(layer, name)[:, :, start:stop] for layer in moved.layers],
            [getattr(layer, name)[:, :, len(system) :] for layer in cache.layers],
        )
        for name in ("keys", "values")
    ]
    return errors[0], errors[1]


EngineForward = Callable[[Sequence[int], int, torch.Tensor], torch.Tensor]
"""The engine's pass over the tokens of a prompt from a position on, whose KV is in slots; returns
the last row's output as `NestedModel.run` does."""


@torch.inference_mode()  # type: ignore[untyped-decorator]
def self_test_engine(
    filler: SlotFiller,
    forward: EngineForward,
    slots: torch.Tensor,
    other_slots: torch.Tensor,
    *,
    vocabulary: int,
) -> dict[str, float]:
    """Compare a nested pass with the engine's own, in unused slots, twice `LENGTH`, and return the
    errors relative to the largest value. Raises `UnsupportedModelError`."""
    model = filler.model
    tokens = probe_tokens(LENGTH, vocabulary)
    ordinary = forward(tokens, 0, slots)
    cache = model.empty_cache(LENGTH)
    full = model.forward(tokens, cache, plan=ForwardPlan(torch.arange(LENGTH, device=model.device)))
    assert full is not None, "no observer stops this pass"
    read = filler.read(tokens, slots)
    filler.write(cache.layers, other_slots[:_PREFIX], start=0)
    resumed = forward(tokens, _PREFIX, other_slots)
    computed = [(layer.keys, layer.values) for layer in cache.layers]
    errors = {
        "full_error": largest_error([full], [ordinary]),  # of the last row
        "read_error": max(map(largest_error, read.layers, computed)),  # of KV out of the slots
        "written_error": largest_error([resumed], [ordinary]),  # over KV written to other slots
        "filled_error": _filled_error(filler, tokens, read),  # through store, plan and filling
    }
    check_errors(model, errors)
    return errors


def _filled_error(filler: SlotFiller, tokens: list[int], read: ChunkKV) -> float:
    """Return the error of filling; by another backend if the filler's own fails on a rank."""
    model, error = filler.model, math.nan
    try:
        error = filled_error(model, tokens, read, backend=filler.backend)
        check_errors(model, {"filled_error": error})
        is_fine = True
    except (UnsupportedModelError, ImportError, RuntimeError):
        logger.warning("the attention backend of chunk reuse is replaced", exc_info=True)
        is_fine = False
    if model.ranks.agree(is_fine):
        return error
    filler.backend = TiledAttention()
    return filled_error(model, tokens, read, backend=filler.backend)
