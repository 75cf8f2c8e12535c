"""Check on the loaded model, before reuse is switched on, that reuse computes what it should.

Knows an adapter. Does not know stores or requests: it makes its own.
"""

from dataclasses import dataclass

import torch

from ragboost.chunk_cache.kv.store import ChunkStore
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.hook import ForwardPlan
from ragboost.chunk_cache.reuse import ChunkReuse
from ragboost.errors import UnsupportedModelError

LENGTH = 64
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}
"""Of the largest logit, by dtype; lower precisions get 0.05."""


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What was measured, as shares of the largest logit.

    Attributes:
        full_error: every token computed through the reuse path, against an ordinary forward.
        resumed_error: system prompt and first chunk taken from the store, the rest computed.
        moved_error: keys computed at one place and moved, against keys computed at the other.
    """

    full_error: float
    resumed_error: float
    moved_error: float


@torch.no_grad()  # type: ignore[untyped-decorator]
def self_test(adapter: ModelAdapter, *, backend: str | None = "tiled") -> SelfTest:
    """Run the reuse path on 64 tokens and compare it with ordinary forwards.

    Raises:
        UnsupportedModelError: a result differs; reuse must stay off for this model. The message
            names the measure and the value.
    """
    vocabulary = int(adapter.config.vocab_size)
    tokens = [(31 * i * i + 7 * i + 3) % vocabulary for i in range(LENGTH)]
    ids = torch.tensor([tokens], device=adapter.device)
    ordinary = adapter.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]
    reuse = ChunkReuse(adapter, ChunkStore(), backend=backend)
    system, chunk, question = tokens[:8], tokens[8:40], tokens[40:]
    full = reuse.prefill(system, [chunk], question, ratio=1.0)
    reuse.precompute(system, [chunk])
    resumed = reuse.prefill(system, [chunk], question, ratio=0.0)
    result = SelfTest(
        full_error=_share(full.logits, ordinary),
        resumed_error=_share(resumed.logits, ordinary),
        moved_error=_moved_error(adapter, reuse, system, chunk),
    )
    limit = TOLERANCE.get(adapter.dtype, 0.05)
    for name in ("full_error", "resumed_error", "moved_error"):
        value = getattr(result, name)
        if not value <= limit:
            raise UnsupportedModelError(
                f"{adapter.name}: {name} is {value:.2g}, {limit:.2g} is allowed; chunk reuse stays "
                "off for this model"
            )
    return result


def _moved_error(
    adapter: ModelAdapter, reuse: ChunkReuse, system: list[int], chunk: list[int]
) -> float:
    """Move a chunk behind a longer text and compare its keys with those of the same text computed
    there: system prompt and chunk, both that much later."""
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
        there = got.keys[:, :, start : start + len(chunk)].float()
        errors.append(_share(there, want.keys[:, :, len(system) :].float()))
    return max(errors)


def _share(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.float() - wanted.float()).abs().max() / wanted.float().abs().max())
