"""Compare reuse with vLLM's own forward pass, once, before the first request.

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
from ragboost.chunk_cache.vllm.compat import engine_forward
from ragboost.chunk_cache.vllm.filler import ChunkFiller
from ragboost.errors import UnsupportedModelError

LENGTH = 64
_HELD = 40


@dataclass(frozen=True, slots=True)
class EngineSelfTest:
    """Measured errors, relative to the largest value.

    Attributes:
        full_error: the last row of a nested pass over all tokens, against vLLM's.
        read_error: KV read out of vLLM's blocks, against that of the nested pass.
        written_error: that of vLLM over KV that was written into other blocks.
        filled_error: KV that went through store, plan and filling, against the engine's.
    """

    full_error: float
    read_error: float
    written_error: float
    filled_error: float


@torch.inference_mode()  # type: ignore[untyped-decorator]
def self_test(filler: ChunkFiller, runner: Any, config: Any) -> EngineSelfTest:
    """Run the comparison in blocks 1, 2, ... of the cache, which must be unused.

    Raises:
        UnsupportedModelError: an error exceeds its limit; the message names it.
    """
    model = filler.model
    tokens = probe_tokens(LENGTH, int(config.model_config.get_vocab_size()))
    count = -(-LENGTH // filler.block_size)
    if int(config.cache_config.num_gpu_blocks) <= 2 * count:
        raise UnsupportedModelError(f"the cache has fewer than {2 * count + 1} blocks")
    first, second = range(1, 1 + count), range(1 + count, 1 + 2 * count)
    ordinary = engine_forward(runner, config, tokens, start=0, blocks=first)
    cache = model.empty_cache(LENGTH)
    rows = torch.arange(LENGTH, device=model.device)
    full = model.forward(tokens, cache, plan=ForwardPlan(rows))
    read = filler.read(tokens, first, start=0, stop=LENGTH, is_exact=False)
    filler.write(cache.layers, second, start=0, stop=_HELD)
    resumed = engine_forward(runner, config, tokens, start=_HELD, blocks=second)
    computed = [(layer.keys, layer.values) for layer in cache.layers]
    result = EngineSelfTest(
        full_error=_error([full], [ordinary]),
        read_error=max(map(_error, read.layers, computed)),
        written_error=_error([resumed], [ordinary]),
        filled_error=filled_error(model, tokens, read, backend=filler.backend),
    )
    limit = TOLERANCE.get(model.dtype, 0.05)
    for name in ("full_error", "read_error", "written_error", "filled_error"):
        value = getattr(result, name)
        if not value <= limit:
            raise UnsupportedModelError(
                f"{model.name}: {name} is {value:.2g}, the limit is {limit:.2g}"
            )
    return result


def _error(got: Sequence[Any], wanted: Sequence[Any]) -> float:
    return max(
        float((one.float() - other.float()).abs().max() / other.float().abs().max())
        for one, other in zip(got, wanted, strict=True)
    )
