"""Drop rows of a forward pass between two layers: their later layers are not computed and keep the
KV they had.

Knows decoder layers and plans. Does not know why rows are dropped. The hooks do nothing to a pass
without a plan that says so, so one model may serve such passes and others at a time.
"""

from typing import Any

import torch
from torch import nn

from ragboost.chunk_cache.hook import PLAN, Plan
from ragboost.chunk_cache.kv_cache import RequestCache
from ragboost.errors import UnsupportedModelError


def install_narrowing(model: nn.Module, *, num_layers: int) -> None:
    """Let plans of this model drop rows. Installing twice does nothing more.

    Raises:
        UnsupportedModelError: the decoder layers were not found.
    """
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            for layer in module:
                if _narrow not in layer._forward_pre_hooks.values():
                    layer.register_forward_pre_hook(_narrow, with_kwargs=True)
            return
    raise UnsupportedModelError(
        f"{type(model).__name__} has no list of {num_layers} decoder layers; rows cannot be dropped"
    )


def _narrow(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    plan: Plan | None = kwargs.get(PLAN)
    if plan is None or plan.kept is None:
        return None
    if plan.num_rows is None:  # the first layer after the rows were chosen
        plan.num_rows = len(plan.positions)
        plan.positions = plan.positions[plan.kept]
        plan.memo.clear()
        for cache in (value for value in kwargs.values() if isinstance(value, RequestCache)):
            for stored in cache.layers:
                stored.rows = plan.positions
    kept, num_rows = plan.kept, plan.num_rows
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
