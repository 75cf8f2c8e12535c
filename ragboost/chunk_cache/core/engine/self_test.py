"""Compare reuse with an engine's own forward pass, once, before the first request. Any difference
beyond rounding keeps reuse off: a new version or kernel must never give wrong KV."""

import logging
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ragboost.chunk_cache.core.engine.slot_filler import SlotFiller
from ragboost.chunk_cache.core.fill import filled_error
from ragboost.chunk_cache.core.measure import largest_error
from ragboost.chunk_cache.core.selftest import check_errors
from ragboost.chunk_cache.model.attention import make_backend
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.model.reusable_model import probe_tokens
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.errors import UnsupportedModelError

logger = logging.getLogger(__name__)

LENGTH = 64
_PREFIX = 40

EngineForward = Callable[[Sequence[int], int, torch.Tensor], torch.Tensor]
"""The engine's pass over the tokens of a prompt from a position on, whose KV is in slots; returns
the last row's output as `NestedModel.run` does."""


class EngineSelfTest(NamedTuple):
    """Measured errors, relative to the largest value."""

    full_error: float  # the last row of a nested pass over all tokens, against the engine's
    read_error: float  # KV read out of the engine's slots, against that of the nested pass
    written_error: float  # the engine's last row over KV that was written into other slots
    filled_error: float  # KV that went through store, plan and filling, against the engine's


@torch.inference_mode()  # type: ignore[untyped-decorator]
def self_test_engine(
    filler: SlotFiller,
    forward: EngineForward,
    slots: torch.Tensor,
    other_slots: torch.Tensor,
    *,
    vocabulary: int,
) -> EngineSelfTest:
    """Run the comparison in unused slots, twice `LENGTH`. Raises `UnsupportedModelError`."""
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
    filled_error = _filled_error(filler, tokens, read)
    result = EngineSelfTest(
        full_error=largest_error([full], [ordinary]),
        read_error=max(map(largest_error, read.layers, computed)),
        written_error=largest_error([resumed], [ordinary]),
        filled_error=filled_error,
    )
    check_errors(model, result._asdict())
    return result


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
    filler.backend = make_backend("tiled")
    return filled_error(model, tokens, read, backend=filler.backend)
