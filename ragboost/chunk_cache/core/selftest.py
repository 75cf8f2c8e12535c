"""A self-test on the loaded model that compares chunk reuse with ordinary forward passes."""

from dataclasses import dataclass

import torch

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import UnsupportedModelError

LENGTH = 64
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}
"""Maximum errors by dtype; 0.05 for lower precisions."""


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Measured errors, relative to the largest value."""

    full_error: float  # of the logits with every token computed through the reuse path
    resumed_error: float  # of the logits with stored system prompt and first chunk
    moved_error: float  # of moved keys against keys computed at the same position


@torch.no_grad()  # type: ignore[untyped-decorator]
def self_test(adapter: ModelAdapter, *, backend: str | None = "tiled") -> SelfTest:
    """Run the reuse path on 64 tokens and compare it with ordinary forward passes.

    Raises:
        UnsupportedModelError: an error exceeds its limit, so the model must not be used with reuse.
            The message names the error.
    """
    vocabulary = int(adapter.config.vocab_size)
    tokens = [(31 * i * i + 7 * i + 3) % vocabulary for i in range(LENGTH)]
    ids = torch.tensor([tokens], device=adapter.device)
    ordinary = adapter.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]
    reuse = ChunkReuse(adapter, TieredStore(), backend=backend)
    system, chunk, question = tokens[:8], tokens[8:40], tokens[40:]
    full = reuse.prefill(system, [chunk], question, ratio=1.0)
    reuse.precompute(system, [chunk])
    resumed = reuse.prefill(system, [chunk], question, ratio=0.0)
    result = SelfTest(
        full_error=_relative_error(full.logits, ordinary),
        resumed_error=_relative_error(resumed.logits, ordinary),
        moved_error=_moved_error(adapter, reuse, system, chunk),
    )
    limit = TOLERANCE.get(adapter.dtype, 0.05)
    for name in ("full_error", "resumed_error", "moved_error"):
        value = getattr(result, name)
        if not value <= limit:
            raise UnsupportedModelError(
                f"{adapter.name}: {name} is {value:.2g}, the limit is {limit:.2g}; chunk reuse "
                "stays off for this model"
            )
    return result


def _moved_error(
    adapter: ModelAdapter, reuse: ChunkReuse, system: list[int], chunk: list[int]
) -> float:
    """Compare a chunk's keys, moved behind a longer text, with those of system prompt and chunk
    computed at the later positions."""
    shift = LENGTH
    other = [(token + 1) % int(adapter.config.vocab_size) for token in (system + chunk) * 2]
    moved = reuse.assemble(system, [other[:shift], chunk], [0]).cache
    start = len(system) + shift
    cache = adapter.empty_cache(len(system) + len(chunk))
    rows = torch.arange(len(system) + len(chunk), device=adapter.device)
    cache.positions = rows + shift
    adapter.forward([*system, *chunk], cache, plan=ForwardPlan(rows))
    errors = []
    for got, want in zip(moved.layers, cache.layers, strict=True):
        keys = got.keys[:, :, start : start + len(chunk)].float()
        errors.append(_relative_error(keys, want.keys[:, :, len(system) :].float()))
    return max(errors)


def _relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.float() - expected.float()).abs().max() / expected.float().abs().max())
