"""Install our attention in a transformers model: calls with a `ForwardPlan` follow it, other calls
are unchanged."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from ragboost.chunk_cache.model.attention.backend import AttentionInputs
from ragboost.chunk_cache.model.attention.dense import DenseAttention
from ragboost.chunk_cache.model.plan import PLAN, ForwardPlan

_PREFIX = "ragboost_planned_"


def install_attention(model: Any) -> None:
    """Replace the model's attention; without a plan its results stay bit-identical. Setting another
    implementation removes it."""
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
    done = plan.attend(module.layer_idx, inputs)
    if done is None and original not in ("eager", "sdpa"):
        done = DenseAttention().attend(inputs)
    if done is not None:
        return done.transpose(1, 2).contiguous(), None
    mask = plan.mask(key.shape[2], window)
    if original == "eager":
        floor = torch.finfo(query.dtype).min
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill(
            ~mask, floor
        )
    attend = _implementation(original, module)
    out: torch.Tensor = attend(module, query, key, value, mask, **kwargs)[0]
    return out, None


def _implementation(name: str, module: Any) -> Callable[..., Any]:
    if name == "eager":
        forward: Callable[..., Any] = sys.modules[type(module).__module__].eager_attention_forward
        return forward
    return AttentionInterface()[name]  # type: ignore[no-any-return]  # transformers is untyped
