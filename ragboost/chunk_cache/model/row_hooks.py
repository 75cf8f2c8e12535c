"""Hooks on the decoder layers that change the rows of a forward pass, if its `ForwardPlan` asks for
it: record a layer's input, begin a later pass there, or drop rows between two layers."""

from typing import Any

import torch
from torch import nn

from ragboost.chunk_cache.model.plan import PLAN, ForwardPlan, Hidden
from ragboost.chunk_cache.model.request_cache import RequestCache

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def install_row_hooks(model: nn.Module, *, num_layers: int) -> bool:
    """Let plans change the rows of this model's passes; False: it has no list of decoder layers."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            for number, layer in enumerate(module):
                hooks = layer._forward_pre_hooks.values()
                if not any(isinstance(hook, _RowHook) for hook in hooks):
                    layer.register_forward_pre_hook(_RowHook(number), with_kwargs=True)
            return True
    return False


class _RowHook:
    """A hook that runs before a decoder layer. A model calls all of its layers: those before
    `plan.begin` compute a single row, correctly; dropped rows keep their KV in later layers."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Arguments | None:
        plan: ForwardPlan | None = kwargs.get(PLAN)
        if plan is None:
            return None
        if plan.keep == self._number:
            states = args[0] if args else kwargs["hidden_states"]
            plan.hidden = Hidden(self._number, plan.positions, states)
        if plan.begin is not None and self._number <= plan.begin.layer:
            return self._resumed(plan, plan.begin, args, kwargs)
        if plan.kept is None:
            return None
        if plan.num_rows is None:  # the first layer after rows were dropped
            plan.num_rows = len(plan.positions)
            _set_rows(plan, plan.positions[plan.kept], kwargs)
        return _select_rows(args, kwargs, plan.kept, plan.num_rows)

    def _resumed(
        self, plan: ForwardPlan, begin: Hidden, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Arguments:
        if self._number == begin.layer:
            _set_rows(plan, begin.positions, kwargs)
            if args:
                return (begin.states, *args[1:]), kwargs
            return args, kwargs | {"hidden_states": begin.states}
        if self._number == 0:
            _set_rows(plan, begin.positions[:1], kwargs)
        first = torch.zeros(1, dtype=torch.long, device=begin.positions.device)
        return _select_rows(args, kwargs, first, len(begin.positions))


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
