"""Replace the `forward` of an engine's layers for the duration of one nested pass."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from ragboost.chunk_cache.model.plan import ForwardPlan


@contextmanager
def replaced_forward(forwards: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    for layer, forward in forwards.items():
        layer.forward = forward
    try:
        yield
    finally:
        for layer in forwards:
            del layer.forward


def resuming_forwards(
    decoder: Sequence[Any], plan: ForwardPlan, *, record: Any, resume: Any
) -> dict[Any, Callable[..., Any]]:
    """Return the forwards of decoder layers that record the input of `plan.keep` and begin at that
    of `plan.begin`. `record` is called with `plan`, the layer's own forward, the layer and its
    arguments; `resume` likewise, with the layer's number before the arguments."""
    # 0 ............. begin.layer ............. keep ............. num_layers
    # |   skipped    | takes states |  as ever  | records its input  | as ever
    last = -1 if plan.begin is None else plan.begin.layer
    forwards: dict[Any, Callable[..., Any]] = {
        layer: partial(resume, plan, type(layer).forward, layer, number)
        for number, layer in enumerate(decoder[: last + 1])
    }
    if plan.keep is not None and plan.keep > last and decoder:
        kept = decoder[plan.keep]
        forwards[kept] = partial(record, plan, type(kept).forward, kept)
    return forwards
