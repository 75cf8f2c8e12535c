"""The interface of the attention backends, and the mask they all implement."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """The attention inputs of one layer. The key in slot j has position j."""

    query: torch.Tensor  # (1, heads, rows, head_dim)
    key: torch.Tensor  # (1, kv heads, keys, head_dim); heads is a multiple of kv heads
    value: torch.Tensor
    # positions of the rows, (rows,), ascending, each below the number of keys
    positions: torch.Tensor
    scaling: float  # factor of the scores
    window: int | None = None  # a row at p sees keys above p - window; None: no window
    softcap: float | None = None  # scores become softcap * tanh(score / softcap); None: no cap
    # a score per head that joins the softmax without a value, (heads,); None: none
    sinks: torch.Tensor | None = None
    # mask of the keys that any row may see, (keys,) bool; None: all keys
    visible: torch.Tensor | None = None
    # cache for later layers of the same pass, such as of masks; all inputs that share it have the
    # same positions, number of keys and visibility
    memo: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def num_keys(self) -> int:
        return int(self.key.shape[2])


class AttentionBackend(Protocol):
    def attend(self, inputs: AttentionInputs) -> torch.Tensor:
        """Return (1, heads, rows, head_dim), equal for all backends up to rounding."""
        ...

    def supports(self, inputs: AttentionInputs) -> bool:
        """Return True if `attend` accepts these inputs: a kernel may lack windows or caps."""
        ...


def exact_mask(
    positions: torch.Tensor,
    num_keys: int,
    *,
    window: int | None = None,
    visible: torch.Tensor | None = None,
    first_key: int = 0,
) -> torch.Tensor:
    """Return the mask of the keys from `first_key` on that each row sees, (rows, num_keys) bool."""
    keys = torch.arange(first_key, first_key + num_keys, device=positions.device)
    mask = keys[None, :] <= positions[:, None]
    if window is not None:
        mask &= keys[None, :] > positions[:, None] - window
    if visible is not None:
        mask &= visible[None, first_key : first_key + num_keys]
    return mask
