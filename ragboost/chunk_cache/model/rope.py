"""Move stored keys to other positions by rotating them (FusionRAG eq. 6, A3 eq. 2, DepCache eq. 5).
Every move starts from the stored original: moves in a row would lose precision in bf16."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from ragboost.errors import UnsupportedModelError

RotaryLayout = Literal["half", "interleaved", "none"]
"""The pairing of dimensions that rotate together: i and i + n/2, 2i and 2i + 1, or none (a layer
without RoPE)."""
LAYOUTS: tuple[RotaryLayout, ...] = ("half", "interleaved", "none")


@dataclass(frozen=True, slots=True)
class Frequencies:
    """The RoPE frequencies of one kind of layer, in radians per position, for one length regime."""

    # (pairs,) float64. Dynamic NTK and LongRoPE change it with the sequence length
    inverse: torch.Tensor

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.inverse.cpu().numpy().tobytes()).hexdigest()[:16]


def rotation_angles(
    old: Frequencies, new: Frequencies, *, stored: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    """Return the angles by which keys must rotate from position and frequencies to others, (tokens,
    pairs) float64: undoing the old rotation and applying the new one is one rotation."""
    return (
        target.double()[:, None] * new.inverse[None, :]
        - stored.double()[:, None] * old.inverse[None, :]
    )


def rotate(
    keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, layout: RotaryLayout
) -> torch.Tensor:
    """Return rotated keys, (..., tokens, head_dim), by angles (tokens, pairs), float32. Dimensions
    beyond the pairs (partial rotary) are copied. The attention factor of YaRN and LongRoPE is in
    stored keys and not applied again."""
    if layout == "none":
        return keys
    pairs = cos.shape[-1]
    turned = keys[..., : 2 * pairs].float()
    if layout == "half":
        first, second = turned[..., :pairs], turned[..., pairs:]
        moved = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    else:
        first, second = turned[..., 0::2], turned[..., 1::2]
        moved = torch.stack((first * cos - second * sin, second * cos + first * sin), -1)
        moved = moved.flatten(-2)
    if keys.shape[-1] == 2 * pairs:
        return moved.to(keys.dtype)
    return torch.cat((moved.to(keys.dtype), keys[..., 2 * pairs :]), -1)


class KeyRotation:
    """The rotation of some keys from their `stored` to their `target` positions, (tokens,); `old`
    has for each run of keys its frequencies by layer and its length."""

    def __init__(
        self,
        *,
        stored: torch.Tensor,
        target: torch.Tensor,
        old: Sequence[tuple[tuple[Frequencies, ...], int]],
        new: tuple[Frequencies, ...],
        layouts: Sequence[RotaryLayout],
    ) -> None:
        self._stored, self._target = stored, target
        self._old, self._new, self._layouts = old, new, layouts
        self._cos_sin: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def apply(self, keys: torch.Tensor, layer: int) -> torch.Tensor:
        """Return the keys of a layer, (1, kv heads, tokens, head_dim), at their new positions."""
        cos, sin = self._angles(layer)
        return rotate(keys, cos, sin, layout=self._layouts[layer])

    def _angles(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        new = self._new[layer]
        if id(new) not in self._cos_sin:
            parts, start = [], 0
            for old, count in self._old:
                part = slice(start, start + count)
                stored, target = self._stored[part], self._target[part]
                parts.append(rotation_angles(old[layer], new, stored=stored, target=target))
                start += count
            angles = torch.cat(parts)
            self._cos_sin[id(new)] = (angles.cos().float(), angles.sin().float())
        return self._cos_sin[id(new)]


def find_layouts(
    before: Sequence[torch.Tensor],
    after: Sequence[torch.Tensor],
    frequencies: Sequence[Frequencies],
    *,
    shift: int,
    tolerance: float,
    model: str,
) -> tuple[RotaryLayout, ...]:
    """Return each layer's layout: by which a text's keys become those of the text at `shift`."""
    near = torch.arange(before[0].shape[-2], device=before[0].device)
    layouts = []
    for layer, speeds in enumerate(frequencies):
        angles = rotation_angles(speeds, speeds, stored=near, target=near + shift)
        cos, sin = angles.cos().float(), angles.sin().float()
        if 2 * cos.shape[-1] > before[layer].shape[-1]:
            raise UnsupportedModelError(
                f"{model} rotates {2 * cos.shape[-1]} dimensions of keys with "
                f"{before[layer].shape[-1]}"
            )
        errors: dict[RotaryLayout, float] = {}
        for layout in LAYOUTS:
            moved = rotate(before[layer], cos, sin, layout=layout).float()
            target = after[layer].float()
            errors[layout] = float((moved - target).norm() / target.norm())
        best = min(LAYOUTS, key=lambda layout: errors[layout])
        if not errors[best] < tolerance:
            raise UnsupportedModelError(
                f"layer {layer} of {model}: moved keys differ from computed ones by a "
                f"relative error of {errors[best]:.2g}; unknown position encoding"
            )
        layouts.append(best)
    return tuple(layouts)


def read_frequencies(table: torch.Tensor) -> torch.Tensor:
    """Return the frequencies of an engine's table of cosines and sines, (positions, 2 * pairs),
    whatever scaling computed it, (pairs,) float64. The angle at position 1 is below half a turn; at
    each doubled position the full turns follow, which halves the error."""
    cos, sin = table.double().cpu().chunk(2, dim=-1)
    position = 1
    frequencies = torch.atan2(sin[1], cos[1])
    while 2 * position < len(table):
        position *= 2
        angles = torch.atan2(sin[position], cos[position])
        turns = ((frequencies * position - angles) / (2 * math.pi)).round()
        frequencies = (angles + 2 * math.pi * turns) / position
    return frequencies
