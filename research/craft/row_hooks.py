"""Hooks on a model's decoder layers that drop rows between two layers of a forward pass, if its
observer is a `RowDropper`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ragboost.chunk_cache.model.attention.backend import AttentionInputs
from ragboost.chunk_cache.model.plan import PLAN, ForwardPlan
from ragboost.chunk_cache.model.request_cache import RequestCache

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class RowDropper:
    """An observer of one pass. `choose` is called as observers are, and may return the indices of
    the rows to keep from the next layer on, (kept,), ascending; at most once."""

    def __init__(self, choose: Callable[[int, AttentionInputs], torch.Tensor | None]) -> None:
        self.kept: torch.Tensor | None = None  # the rows that are left
        self.num_rows: int | None = None  # number of rows before that, once they are gone
        self._choose = choose

    def __call__(self, layer: int, inputs: AttentionInputs) -> None:
        kept = self._choose(layer, inputs)
        self.kept = self.kept if kept is None else kept


def install_row_hooks(model: nn.Module, *, num_layers: int) -> bool:
    """Let observers drop rows of this model's passes; False: it has no list of decoder layers."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            for layer in module:
                hooks = layer._forward_pre_hooks.values()
                if _drop_rows not in hooks:
                    layer.register_forward_pre_hook(_drop_rows, with_kwargs=True)
            return True
    return False


def _drop_rows(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Arguments | None:
    """Select the rows of a layer's arguments; dropped ones keep their KV in this and later layers.
    Runs before the layer."""
    plan: ForwardPlan | None = kwargs.get(PLAN)
    dropper = None if plan is None else plan.observe
    if plan is None or not isinstance(dropper, RowDropper) or dropper.kept is None:
        return None
    if dropper.num_rows is None:  # the first layer after rows were dropped
        dropper.num_rows = len(plan.positions)
        _set_rows(plan, plan.positions[dropper.kept], kwargs)
    return _select_rows(args, kwargs, dropper.kept, dropper.num_rows)


def _set_rows(plan: ForwardPlan, positions: torch.Tensor, kwargs: dict[str, Any]) -> None:
    plan.positions = positions
    plan.memo.clear()
    for cache in (value for value in kwargs.values() if isinstance(value, RequestCache)):
        for stored in cache.layers:
            stored.rows = positions


def _select_rows(
    args: tuple[Any, ...], kwargs: dict[str, Any], kept: torch.Tensor, num_rows: int
) -> _Arguments:
    """Return a layer's arguments for the rows with indices `kept`, (kept,), of `num_rows`."""

    def select(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        # The layer before has dropped rows of its output; what the model made once has all rows.
        return tensor.index_select(dim, kept) if tensor.shape[dim] == num_rows else tensor

    kwargs = dict(kwargs)
    if args:
        args = (select(args[0], 1), *args[1:])
    for name, dim in (("hidden_states", 1), ("position_ids", 1), ("cache_position", 0)):
        if kwargs.get(name) is not None:
            kwargs[name] = select(kwargs[name], dim)
    if kwargs.get("position_embeddings") is not None:
        kwargs["position_embeddings"] = tuple(select(p, 1) for p in kwargs["position_embeddings"])
    return args, kwargs
