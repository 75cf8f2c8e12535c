"""One attention call over all rows and keys with a dense mask: accepts all inputs."""

import torch
import torch.nn.functional as F  # noqa: N812

from ragboost.chunk_cache.model.attention.backend import AttentionInputs, exact_mask


class DenseAttention:
    """SDPA with a boolean mask, or matrix products for softcaps and sinks, which SDPA lacks."""

    def supports(self, inputs: AttentionInputs) -> bool:
        return True

    def attend(self, inputs: AttentionInputs) -> torch.Tensor:
        mask = exact_mask(
            inputs.positions, inputs.num_keys, window=inputs.window, visible=inputs.visible
        )
        return masked_attention(inputs, inputs.query, inputs.key, inputs.value, mask)


def masked_attention(
    inputs: AttentionInputs,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Return the attention of some rows over some keys under a (rows, keys) mask, or all of them,
    with scaling, softcap and sinks of `inputs`."""
    if inputs.softcap is not None or inputs.sinks is not None:
        if mask is None:
            mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        return weighted_values(attention_weights(inputs, query, key, mask), value)
    is_shared = query.shape[1] != key.shape[1]
    if is_shared and query.device.type != "cpu":
        return folded_attention(query, key, value, mask, scale=inputs.scaling)
    return F.scaled_dot_product_attention(
        query, key, value, mask, scale=inputs.scaling, enable_gqa=is_shared
    )


def folded_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scale: float,
) -> torch.Tensor:
    """Return SDPA in which the heads that share a KV head become rows of it. CUDA's fast kernels
    take a mask or shared heads, not both: the math kernel would write out all scores."""
    groups = query.shape[1] // key.shape[1]
    rows = query.reshape(1, key.shape[1], -1, query.shape[-1])
    folded = None if mask is None else mask.repeat(groups, 1)
    out = F.scaled_dot_product_attention(rows, key, value, folded, scale=scale)
    return out.view(*query.shape[:3], value.shape[-1])


def attention_weights(
    inputs: AttentionInputs, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return softmax weights in float32, (1, heads, rows, keys); with sinks they sum to less."""
    # Heads that share a KV head become rows of it, so that no key is copied.
    heads, rows, dim = query.shape[1:]
    shared = query.float().reshape(1, key.shape[1], -1, dim)
    scores = (shared @ key.float().mT).view(1, heads, rows, -1) * inputs.scaling
    if inputs.softcap is not None:
        scores = inputs.softcap * torch.tanh(scores / inputs.softcap)
    scores = scores.masked_fill(~mask, float("-inf"))
    if inputs.sinks is None:
        return scores.softmax(-1)
    sinks = inputs.sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]


def weighted_values(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    heads, rows, keys = weights.shape[1:]
    shared = weights.view(1, value.shape[1], -1, keys)
    # In float32, as the weights are: batched products in bfloat16 are up to 40 times slower on CPUs
    # without instructions for it.
    return (shared @ value.float()).to(value.dtype).view(1, heads, rows, value.shape[-1])
