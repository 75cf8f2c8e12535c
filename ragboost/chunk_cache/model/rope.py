"""Move stored keys to other positions by rotating them (FusionRAG eq. 6, A3 eq. 2).

Knows rotary embeddings: frequencies and which dimensions form a pair. Does not know models or
    stores.

Keys are stored after RoPE with the position they were computed at, and every move starts from the
stored original: ten moves in a row would lose four times as much precision in bf16 as one.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

import torch

Layout = Literal["half", "interleaved", "none"]
"""Which dimensions rotate together: i and i + n/2, 2i and 2i + 1, or none (a layer without
RoPE)."""


@dataclass(frozen=True, slots=True)
class Frequencies:
    """The rotation speeds of one kind of layer, in radians per position, for one length regime.

    Attributes:
        inverse: (pairs,) float64. Dynamic-NTK and longrope change it with the sequence length.
    """

    inverse: torch.Tensor

    @property
    def digest(self) -> str:
        """Identity of the regime: keys stored under another one need `angles` of both."""
        return hashlib.sha256(self.inverse.cpu().numpy().tobytes()).hexdigest()[:16]


def angles(
    old: Frequencies, new: Frequencies, *, stored: torch.Tensor, wanted: torch.Tensor
) -> torch.Tensor:
    """Return by how much keys must turn, (tokens, pairs) float64.

    Un-rotating with the old frequencies and rotating with the new ones is one rotation by the
    difference, so a changed regime costs nothing extra.

    Args:
        old, new: frequencies when the keys were computed, and of the prompt they go into.
        stored, wanted: positions, (tokens,).
    """
    return (
        wanted.double()[:, None] * new.inverse[None, :]
        - stored.double()[:, None] * old.inverse[None, :]
    )


def rotate(
    keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, layout: Layout
) -> torch.Tensor:
    """Return keys turned by the given angles; the input is left as it is.

    The attention factor of yarn and longrope is already inside stored keys and is not applied
    again. Dimensions beyond the pairs (partial rotary) are copied.

    Args:
        keys: (..., tokens, head_dim).
        cos, sin: of the angles, (tokens, pairs), float32.
        layout: how dimensions pair up.
    """
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
