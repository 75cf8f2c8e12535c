"""Drop rows of a forward pass between two layers: their later layers are not computed and keep the
KV they had.

Knows decoder layers and plans. Does not know why rows are dropped. The hooks do nothing to a pass
without a plan that says so, so one model may serve such passes and others at a time.
"""

from typing import Any

import torch
from torch import nn

from ragboost.chunk_cache.kv.request_cache import RequestCache
from ragboost.chunk_cache.model.hook import PLAN, ForwardPlan
from ragboost.errors import UnsupportedModelError


def install_narrowing(model: nn.Module, *, num_layers: int) -> None:
    """Let plans of this model drop rows. Installing twice does nothing more.

    Raises:
        UnsupportedModelError: the decoder layers were not found.
    """
    layers = decoder_layers(model, num_layers=num_layers)
    if layers is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no list of {num_layers} decoder layers; rows cannot be "
            "dropped"
        )
    for layer in layers:
        if _narrow not in layer._forward_pre_hooks.values():
            layer.register_forward_pre_hook(_narrow, with_kwargs=True)


def decoder_layers(model: nn.Module, *, num_layers: int) -> nn.ModuleList | None:
    """Return the list of a model's decoder layers; None: it has none of this length."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return module
    return None


def _narrow(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    plan: ForwardPlan | None = kwargs.get(PLAN)
    if plan is None or plan.kept is None:
        return None
    if plan.num_rows is None:  # the first layer after the rows were chosen
        plan.num_rows = len(plan.positions)
        go_on_with(plan, plan.positions[plan.kept], kwargs)
    return narrowed(args, kwargs, plan.kept, plan.num_rows)


def go_on_with(plan: ForwardPlan, positions: torch.Tensor, kwargs: dict[str, Any]) -> None:
    """Let the layers from here on compute other rows of the prompt.

    Args:
        plan: of the pass.
        positions: of the rows, ascending.
        kwargs: of a layer, with the cache that is written to among them.
    """
    plan.positions = positions
    plan.memo.clear()
    for cache in (value for value in kwargs.values() if isinstance(value, RequestCache)):
        for stored in cache.layers:
            stored.rows = positions


def narrowed(
    args: tuple[Any, ...], kwargs: dict[str, Any], kept: torch.Tensor, num_rows: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a layer's arguments, cut to some rows.

    Args:
        args, kwargs: for all rows.
        kept: numbers of the rows, (kept,).
        num_rows: of all.
    """
    kwargs = dict(kwargs)
    if args:
        args = (_rows(args[0], kept, num_rows, dim=1), *args[1:])
    for name, dim in (("hidden_states", 1), ("position_ids", 1), ("cache_position", 0)):
        if kwargs.get(name) is not None:
            kwargs[name] = _rows(kwargs[name], kept, num_rows, dim=dim)
    if kwargs.get("position_embeddings") is not None:
        kwargs["position_embeddings"] = tuple(
            _rows(part, kept, num_rows, dim=1) for part in kwargs["position_embeddings"]
        )
    return args, kwargs


def _rows(tensor: torch.Tensor, kept: torch.Tensor, num_rows: int, *, dim: int) -> torch.Tensor:
    """Hidden states come narrowed from the layer before; what the model made once does not."""
    return tensor.index_select(dim, kept) if tensor.shape[dim] == num_rows else tensor
