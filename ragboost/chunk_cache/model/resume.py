"""Keep what goes into a decoder layer, and begin a later pass over some of its rows there.

Knows decoder layers and plans. Does not know why a pass begins late. The hooks do nothing to a pass
whose plan does not ask for it. A model calls all its layers: those before the beginning get one row
of the pass, whose KV comes out as it is.
"""

from typing import Any

import torch
from torch import nn

from ragboost.chunk_cache.model.hook import PLAN, ForwardPlan, Hidden
from ragboost.chunk_cache.model.narrow import decoder_layers, go_on_with, narrowed


def install_resuming(model: nn.Module, *, num_layers: int) -> bool:
    """Let plans of this model keep hidden states and begin with them. Installing twice does nothing
    more. Returns whether the decoder layers were found."""
    layers = decoder_layers(model, num_layers=num_layers)
    for number, layer in enumerate(layers or ()):
        hooks = layer._forward_pre_hooks.values()
        if not any(isinstance(hook, _Resuming) for hook in hooks):
            layer.register_forward_pre_hook(_Resuming(number), with_kwargs=True)
    return layers is not None


class _Resuming:
    """Called before the layer of this number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        plan: ForwardPlan | None = kwargs.get(PLAN)
        if plan is None:
            return None
        if plan.keep == self._number:
            states = args[0] if args else kwargs["hidden_states"]
            plan.hidden = Hidden(self._number, plan.positions, states)
        if plan.begin is None or self._number > plan.begin.layer:
            return None
        rows = plan.begin.positions
        if self._number == plan.begin.layer:
            go_on_with(plan, rows, kwargs)
            states = plan.begin.states
            return (
                ((states, *args[1:]), kwargs)
                if args
                else (args, kwargs | {"hidden_states": states})
            )
        if self._number == 0:
            go_on_with(plan, rows[:1], kwargs)
        first = torch.zeros(1, dtype=torch.long, device=rows.device)
        return narrowed(args, kwargs, first, len(rows))
