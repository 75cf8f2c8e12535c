"""Models that can compute selected tokens of a prompt, and whose KV can be moved. What a class name
does not tell reliably, such as the dimensions that RoPE pairs, is measured on a few tokens. Does
not know chunks, policies or stores."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from ragboost.chunk_cache.model.fingerprint import weights_digest
from ragboost.chunk_cache.model.plan import ForwardPlan, StopForwardError
from ragboost.chunk_cache.model.ranks import ONE_RANK, Ranks, together
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.model.rope import Frequencies, RotaryLayout, find_layouts

PROBE_LENGTH = 8
_PROBE_SHIFT = 5


class ReusableModel(ABC):
    """A causal LM whose KV can be moved and recomputed token by token. A subclass calls `measure`
    at the end of its constructor."""

    kv_shapes: Sequence[tuple[int, int, int]]  # of each layer: KV heads, key and value dimension
    layouts: tuple[RotaryLayout, ...]

    def __init__(
        self,
        model: Any,
        *,
        num_layers: int,
        vocabulary: int,
        dtype: torch.dtype,
        device: torch.device,
        ranks: Ranks = ONE_RANK,
    ) -> None:
        self.model, self.ranks = model, ranks
        self.name = type(model).__name__
        self.num_layers, self.dtype, self.device = num_layers, dtype, device
        self._vocabulary = vocabulary
        self._last_regime: tuple[tuple[Frequencies, ...], str] | None = None

    @abstractmethod
    def run(
        self, ids: torch.Tensor, positions: torch.Tensor, cache: RequestCache, plan: ForwardPlan
    ) -> torch.Tensor:
        """Run the model with the attention of `plan`, and return the last row's output: logits, or
        hidden states that every rank has."""

    @abstractmethod
    def config_text(self) -> str: ...

    @abstractmethod
    def frequencies(self, length: int) -> tuple[Frequencies, ...]:
        """Return each layer's RoPE frequencies in a prompt of `length` tokens, equal ones as
        one."""

    def regime(self, length: int) -> str:
        """Return the identity of the RoPE frequencies in a prompt of `length` tokens."""
        frequencies = self.frequencies(length)
        if self._last_regime is None or self._last_regime[0] is not frequencies:
            digests = "".join(layer.digest for layer in frequencies)
            regime = hashlib.sha256(digests.encode()).hexdigest()[:16]
            self._last_regime = (frequencies, regime)
            return regime
        return self._last_regime[1]

    def fingerprint(self) -> str:
        """Return a digest of all ranks' weights: every rank's KV depends on all of them."""
        return self.ranks.joined(weights_digest(self.config_text(), self.model.named_parameters()))

    def empty_cache(self, length: int) -> RequestCache:
        like = {"dtype": self.dtype, "device": self.device}
        return RequestCache(
            [
                (
                    torch.zeros(1, heads, length, key_dim, **like),
                    torch.zeros(1, heads, length, value_dim, **like),
                )
                for heads, key_dim, value_dim in self.kv_shapes
            ]
        )

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def forward(
        self, tokens: Sequence[int], cache: RequestCache, *, plan: ForwardPlan
    ) -> torch.Tensor | None:
        """Compute the rows of `plan` and write their KV to `cache`, which has a slot for each
        token; return the last row's logits, (vocabulary,), unless an observer stopped the pass."""
        rows = plan.positions
        positions = rows if cache.positions is None else cache.positions[rows]
        ids = torch.tensor(list(tokens), device=self.device)
        with cache.writing(rows):
            try:
                return self.run(ids, positions, cache, plan)
            except StopForwardError:
                return None

    def measure(self) -> None:
        # Attention depends on distances only, so in every layer the keys of a moved text must be
        # its original keys, rotated.
        keys = self._probe_keys(0), self._probe_keys(_PROBE_SHIFT)
        frequencies = self.frequencies(PROBE_LENGTH + _PROBE_SHIFT)
        self.layouts = together(
            self.ranks,
            lambda: find_layouts(
                *keys, frequencies, shift=_PROBE_SHIFT, tolerance=self._tolerance, model=self.name
            ),
        )

    def _probe_keys(self, shift: int) -> list[torch.Tensor]:
        rows = torch.arange(PROBE_LENGTH, device=self.device)
        cache = self.empty_cache(PROBE_LENGTH)
        cache.positions = rows + shift
        self.forward(self._probe_tokens(), cache, plan=ForwardPlan(rows))
        return [layer.keys for layer in cache.layers]

    def _probe_tokens(self) -> list[int]:
        return probe_tokens(PROBE_LENGTH, self._vocabulary)

    @property
    def _tolerance(self) -> float:
        return 1e-3 if self.dtype == torch.float32 else 0.05


def probe_tokens(count: int, vocabulary: int) -> list[int]:
    """Return ids from the middle of a vocabulary on. On a text of its first ones, which are often
    reserved, the logits of some models in half precision are mostly rounding errors."""
    return [(17 * i * i + 5 * i + vocabulary // 2) % vocabulary for i in range(count)]
