"""The interface of models that can compute selected tokens of a prompt.

`ModelAdapter` implements it for transformers, `NestedModel` for the models of engines.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.model.ranks import Ranks
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.model.rope import Frequencies, RotaryLayout


class ReusableModel(Protocol):
    """A causal LM whose KV can be moved and recomputed token by token.

    Attributes:
        name: the class of the model, for messages.
        num_layers, device, dtype: properties of the model.
        layouts: RoPE layout of each layer's keys.
        can_resume: a pass may begin with the hidden states of an earlier one.
        ranks: the processes that hold it together.
    """

    name: str
    num_layers: int
    device: torch.device
    dtype: torch.dtype
    layouts: tuple[RotaryLayout, ...]
    can_resume: bool
    ranks: Ranks

    def frequencies(self, length: int) -> tuple[Frequencies, ...]:
        """Return the RoPE frequencies of each layer in a prompt of `length` tokens."""
        ...

    def regime(self, length: int) -> str:
        """Return the identity of the RoPE frequencies in a prompt of `length` tokens."""
        ...

    def empty_cache(self, length: int) -> RequestCache:
        """Return a cache with `length` zeroed slots."""
        ...

    def forward(
        self, tokens: Sequence[int], cache: RequestCache, *, plan: ForwardPlan
    ) -> torch.Tensor | None:
        """Compute the rows of `plan`, write their KV to `cache`, and return the last row's logits,
        (vocabulary,); None if an observer stopped the pass."""
        ...
