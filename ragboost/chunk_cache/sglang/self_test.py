"""Compare reuse with SGLang's own forward pass, once, before the first request.

Any difference beyond rounding keeps reuse off: a new version, kernel or model that breaks an
assumption must never give wrong KV.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ragboost.chunk_cache.core.fill import filled_error
from ragboost.chunk_cache.core.selftest import TOLERANCE
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.model.reusable_model import probe_tokens
from ragboost.chunk_cache.sglang.compat import engine_forward
from ragboost.chunk_cache.sglang.filler import SlotFiller
from ragboost.errors import UnsupportedModelError

LENGTH = 64
_HELD = 40


@dataclass(frozen=True, slots=True)
class PoolSelfTest:
    """Measured errors, relative to the largest value.

    Attributes:
        full_error: logits of a nested pass over all tokens, against SGLang's.
        read_error: KV read out of SGLang's slots, against that of the nested pass.
        written_error: logits of SGLang over KV that was written into other slots.
        filled_error: KV that went through store, plan and filling, against the engine's.
    """

    full_error: float
    read_error: float
    written_error: float
    filled_error: float


@torch.inference_mode()  # type: ignore[untyped-decorator]
def self_test(filler: SlotFiller, runner: Any, allocator: Any) -> PoolSelfTest:
    """Run the comparison in slots of an idle pool, which are free again afterwards.

    Raises:
        UnsupportedModelError: an error exceeds its limit; the message names it.
    """
    count = -(-LENGTH // allocator.page_size) * allocator.page_size
    slots = allocator.alloc(2 * count)
    if slots is None:
        raise UnsupportedModelError(f"the KV pool has fewer than {2 * count} slots")
    try:
        result = _compare(filler, runner, slots[:LENGTH], slots[count : count + LENGTH])
    finally:
        allocator.free(slots)
    limit = TOLERANCE.get(filler.model.dtype, 0.05)
    for name in ("full_error", "read_error", "written_error", "filled_error"):
        value = getattr(result, name)
        if not value <= limit:
            raise UnsupportedModelError(
                f"{filler.model.name}: {name} is {value:.2g}, the limit is {limit:.2g}"
            )
    return result


def _compare(
    filler: SlotFiller, runner: Any, first: torch.Tensor, second: torch.Tensor
) -> PoolSelfTest:
    model = filler.model
    tokens = probe_tokens(LENGTH, int(runner.model_config.vocab_size))
    ordinary = engine_forward(runner, tokens, start=0, slots=first)
    cache = model.empty_cache(LENGTH)
    full = model.forward(tokens, cache, plan=ForwardPlan(torch.arange(LENGTH, device=model.device)))
    read = filler.read(tokens, first, start=0, is_exact=False)
    filler.write(cache.layers, second[:_HELD], start=0)
    resumed = engine_forward(runner, tokens, start=_HELD, slots=second)
    computed = [(layer.keys, layer.values) for layer in cache.layers]
    return PoolSelfTest(
        full_error=_error([full], [ordinary]),
        read_error=max(map(_error, read.layers, computed)),
        written_error=_error([resumed], [ordinary]),
        filled_error=filled_error(model, tokens, read, backend=filler.backend),
    )


def _error(got: Sequence[Any], wanted: Sequence[Any]) -> float:
    return max(
        float((one.float() - other.float()).abs().max() / other.float().abs().max())
        for one, other in zip(got, wanted, strict=True)
    )
