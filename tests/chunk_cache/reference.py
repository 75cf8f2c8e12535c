"""Naive reference implementations of chunk reuse, by plain forward passes of the model."""

from typing import Any

import torch
from transformers.cache_utils import DynamicCache

Layers = list[tuple[torch.Tensor, torch.Tensor]]


@torch.no_grad()
def ordinary(model: Any, tokens: list[int]) -> torch.Tensor:
    """Return the logits of the last token."""
    out = model(torch.tensor([tokens]), use_cache=False, logits_to_keep=1)
    logits: torch.Tensor = out.logits[0, -1]
    return logits


@torch.no_grad()
def full_reuse(
    model: Any, system: list[int], chunks: list[list[int]], question: list[int]
) -> torch.Tensor:
    """Return the logits of the last token under full reuse, from one pass with a block mask.

    No chunk sees another. Each chunk is at its final position, preceded by its own copy of the
    system prompt. Attention depends on distances only, so this equals a chunk computed directly
    after the system prompt. The question sees the first copy, the chunks and itself.
    """
    size = len(system)
    tokens, positions, owner = list(system), list(range(size)), [0] * size
    shown = [True] * size
    start = size
    for number, chunk in enumerate(chunks, 1):
        tokens += [*system, *chunk]
        positions += range(start - size, start + len(chunk))
        owner += [number] * (size + len(chunk))
        shown += [False] * size + [True] * len(chunk)
        start += len(chunk)
    tokens += question
    positions += range(start, start + len(question))
    owner += [-1] * len(question)
    shown += [True] * len(question)

    own, place, seen = torch.tensor(owner), torch.tensor(positions), torch.tensor(shown)
    order = torch.arange(len(tokens))
    mask = (own[:, None] == own[None]) | ((own[:, None] == -1) & seen[None])
    mask &= order[None] <= order[:, None]
    out = model(
        torch.tensor([tokens]),
        position_ids=place[None],
        attention_mask=_masks(model, mask, place),
        use_cache=False,
        logits_to_keep=1,
    )
    logits: torch.Tensor = out.logits[0, -1]
    return logits


def _masks(model: Any, mask: torch.Tensor, place: torch.Tensor) -> Any:
    """Return the mask in the model's form: one per layer type if these differ."""
    window = getattr(model.config, "sliding_window", None)
    near = mask if window is None else mask & (place[None] > place[:, None] - window)
    full, local = _four_dimensional(model, mask), _four_dimensional(model, near)
    types = set(getattr(model.config, "layer_types", None) or [])
    if len(types) > 1:
        return {"full_attention": full, "sliding_attention": local}
    return full if window is None else local


def _four_dimensional(model: Any, mask: torch.Tensor) -> torch.Tensor:
    if "eager" in model.config._attn_implementation:
        floor = torch.finfo(torch.float32).min
        return torch.zeros(mask.shape).masked_fill(~mask, floor)[None, None]
    return mask[None, None]


@torch.no_grad()
def token_by_token(
    model: Any, layers: Layers, tokens: list[int], rows: list[int]
) -> tuple[Layers, torch.Tensor]:
    """Recompute rows one at a time, each as a decoding step over the preceding KV.

    Returns:
        The KV with the rows replaced, and the logits of the last row.
    """
    layers = [(keys.clone(), values.clone()) for keys, values in layers]
    logits = torch.zeros(0)
    for row in rows:
        past = DynamicCache()
        for index, (keys, values) in enumerate(layers):
            past.update(keys[:, :, :row].clone(), values[:, :, :row].clone(), index)
        out = model(
            torch.tensor([[tokens[row]]]),
            position_ids=torch.tensor([[row]]),
            past_key_values=past,
            use_cache=True,
        )
        logits = out.logits[0, -1]
        for (keys, values), layer in zip(layers, past.layers, strict=True):
            keys[:, :, row] = layer.keys[:, :, -1]
            values[:, :, row] = layer.values[:, :, -1]
    return layers, logits
