"""Put our attention into a transformers model: ordinary calls stay as they are, planned ones follow
the plan.

Knows the attention interface of transformers. Does not know caches or chunks.
"""

import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from ragboost.chunk_cache.model.attention.base import AttentionBackend, AttentionInputs, exact_mask
from ragboost.chunk_cache.model.attention.dense import DenseAttention

PLAN = "ragboost_plan"
"""The keyword that carries a `ForwardPlan` through the model to its attention."""
_PREFIX = "ragboost_planned_"


Observer = Callable[[int, AttentionInputs], torch.Tensor | None]
"""Sees a layer's number and attention inputs; may return the numbers of the rows to go on with,
(kept,), ascending. Rows can be dropped once per pass, and only where `narrow` is installed."""


class StopForwardError(Exception):
    """Ends a forward pass at a layer, once an observer has seen what it wanted."""


class Hidden(NamedTuple):
    """What goes into a layer of the model, for some rows of a prompt.

    Attributes:
        layer: its number, counted from 0.
        positions: of the rows, (rows,), ascending.
        states: hidden states, (1, rows, hidden size).
    """

    layer: int
    positions: torch.Tensor
    states: torch.Tensor

    def of(self, positions: torch.Tensor) -> "Hidden":
        """Return the part for these rows, (n,), which must be among `positions`."""
        rows = torch.searchsorted(self.positions, positions)
        return Hidden(self.layer, positions, self.states[:, rows])


@dataclass(slots=True)
class ForwardPlan:
    """How the attention of one forward pass treats its rows.

    Attributes:
        positions: slots of the rows, (rows,), ascending.
        backend: None: the model's own attention under a dense exact mask, where it takes one.
        visible: keys that may be seen at all, (keys,) bool; None: every key.
        observe: called in each layer with its number and what its attention is given; may return
            which of the rows go on from the next layer, see `narrow`.
        windows: each layer's window, filled in on the way.
        memo: masks that all layers of the pass share, filled in on the way.
        kept: numbers of the rows that go on, once some were dropped.
        num_rows: rows there were before; set when `positions` is cut to those that go on.
        keep: the layer whose input is kept in `hidden`, see `resume`; None: none is.
        hidden: what went into that layer, filled in on the way.
        begin: the rows' input to a layer, from an earlier pass; the layers before it are not
            computed again, and an observer sees one row in them.
    """

    positions: torch.Tensor
    backend: AttentionBackend | None = None
    visible: torch.Tensor | None = None
    observe: Observer | None = None
    windows: dict[int, int | None] = field(default_factory=dict)
    memo: dict[Hashable, Any] = field(default_factory=dict)
    kept: torch.Tensor | None = None
    num_rows: int | None = None
    keep: int | None = None
    hidden: Hidden | None = None
    begin: Hidden | None = None

    def mask(self, num_keys: int, window: int | None) -> torch.Tensor:
        """Return the dense mask, (1, 1, rows, num_keys) bool, made once per pass."""
        key = ("dense", num_keys, window)
        if key not in self.memo:
            mask = exact_mask(self.positions, num_keys, window=window, visible=self.visible)
            self.memo[key] = mask[None, None]
        return self.memo[key]


def both(first: Observer | None, second: Observer | None) -> Observer | None:
    """Return an observer that shows a pass to two; the rows that the second one keeps go on."""
    if first is None or second is None:
        return first or second

    def observe(layer: int, inputs: AttentionInputs) -> torch.Tensor | None:
        first(layer, inputs)
        return second(layer, inputs)

    return observe


def install(model: Any) -> None:
    """Replace the model's attention by one that does the same, bit for bit, without a plan.

    Installing twice does nothing more. Whatever sets another implementation undoes it; install
    again then, and the new one serves the ordinary calls.
    """
    original: str = model.config._attn_implementation
    if original.startswith(_PREFIX):
        return
    name = _PREFIX + original

    def attention(module: Any, *args: Any, **kwargs: Any) -> Any:
        plan: ForwardPlan | None = kwargs.pop(PLAN, None)
        if plan is None:
            return _implementation(original, module)(module, *args, **kwargs)
        return _planned(plan, original, module, *args, **kwargs)

    AttentionInterface.register(name, attention)
    masks = AttentionMaskInterface()
    if original in masks:
        AttentionMaskInterface.register(name, masks[original])
    model.set_attn_implementation(name)


def _planned(
    plan: ForwardPlan,
    original: str,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    window: int | None = kwargs.get("sliding_window")
    plan.windows[module.layer_idx] = window
    scaling = kwargs.get("scaling")
    inputs = AttentionInputs(
        query,
        key,
        value,
        plan.positions,
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window=window,
        softcap=kwargs.get("softcap"),
        sinks=kwargs.get("s_aux"),
        visible=plan.visible,
        memo=plan.memo,
    )
    if plan.observe is not None:
        kept = plan.observe(module.layer_idx, inputs)
        if kept is not None:
            plan.kept = kept
    if plan.backend is not None and plan.backend.supports(inputs):
        return plan.backend.attend(inputs).transpose(1, 2).contiguous(), None
    if original not in ("eager", "sdpa"):
        return DenseAttention().attend(inputs).transpose(1, 2).contiguous(), None
    mask = plan.mask(key.shape[2], window)
    if original == "eager":
        floor = torch.finfo(query.dtype).min
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill(
            ~mask, floor
        )
    out: torch.Tensor = _implementation(original, module)(
        module, query, key, value, mask, **kwargs
    )[0]
    return out, None


def _implementation(name: str, module: Any) -> Callable[..., Any]:
    if name == "eager":
        forward: Callable[..., Any] = sys.modules[type(module).__module__].eager_attention_forward
        return forward
    return AttentionInterface()[name]  # type: ignore[no-any-return]  # transformers is untyped
