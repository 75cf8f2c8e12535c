"""The KV of one chunk, with the position and context it was computed in."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from ragboost.chunk_cache.store.influence import Influence

KV = tuple[torch.Tensor, torch.Tensor]


class Origin(NamedTuple):
    """Context that the KV of a chunk has seen, by which of two the better is kept."""

    is_settled: bool = False  # it is exact behind what preceded it, or was measured there
    base: int = 0  # tokens that preceded it

    def is_better(self, other: "Origin", *, is_first: bool) -> bool:
        """Return True if this KV replaces the other: settled KV that which is not, and of first
        chunks KV behind fewer tokens that behind more."""
        if self.is_settled != other.is_settled:
            return self.is_settled
        return is_first and self.base < other.base


@dataclass(frozen=True, slots=True)
class ChunkKV:
    """The KV of a run of tokens. Tensors are shared between requests and must not be written to."""

    tokens: tuple[int, ...]
    base: int  # position of the first token when the KV was computed
    layers: tuple[KV, ...]  # keys (after RoPE) and values
    regime: str  # identity of the RoPE frequencies, see `ReusableModel.regime`
    length: int  # tokens of the prompt it was computed in, which decide the frequencies
    influence: Influence | None = None  # attention of its tokens to the preceding chunks
    # `tokens_digest` of all preceding tokens if the KV equals that of an ordinary forward pass over
    # them and the chunk; None if it is approximate everywhere, such as after neighbours that had
    # not seen each other.
    exact_after: str | None = None
    compute_s: float | None = None

    @property
    def origin(self) -> Origin:
        return Origin(self.exact_after is not None or self.influence is not None, self.base)

    @property
    def size_bytes(self) -> int:
        return sum(keys.nbytes + values.nbytes for keys, values in self.layers)

    def to(self, device: torch.device) -> "ChunkKV":
        if all(keys.device == device for keys, _ in self.layers):
            return self
        layers = tuple((keys.to(device), values.to(device)) for keys, values in self.layers)
        return replace(self, layers=layers)

    def without_first(self, count: int) -> "ChunkKV":
        cut = self._part(slice(count, None)) if count else self
        return replace(cut, base=self.base + count)

    def only_first(self, count: int) -> "ChunkKV":
        if count >= len(self.tokens):
            return self
        influence = None if self.influence is None else self.influence.only_first(count)
        return replace(self._part(slice(count)), influence=influence)

    def _part(self, part: slice) -> "ChunkKV":
        return replace(
            self,
            tokens=self.tokens[part],
            layers=tuple((keys[:, :, part], values[:, :, part]) for keys, values in self.layers),
        )
