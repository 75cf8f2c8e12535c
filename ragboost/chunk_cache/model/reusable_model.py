"""Models that can compute selected tokens of a prompt, and whose KV can be moved. What a class name
does not tell reliably, such as the dimensions that RoPE pairs, is measured on a few tokens. Does
not know chunks, policies or stores."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch

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
        config: Any,
        *,
        num_layers: int,
        vocabulary: int,
        dtype: torch.dtype,
        device: torch.device,
        ranks: Ranks = ONE_RANK,
    ) -> None:
        self.model, self.ranks, self._model_config = model, ranks, config
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

    def config_text(self) -> str:
        text: str = self._model_config.to_json_string(use_diff=False)
        return text

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


_PIECE = 1 << 16  # words of eight bytes hashed at once, which fit into a processor cache
_ODD = -7046029254386353131  # 2^64 / golden ratio, as a signed word
_NAMES_OF_PLACES = ("_name_or_path", "_commit_hash", "transformers_version")


def weights_digest(config: str, parameters: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Return a digest that is equal for equal weights in equal order, whatever their path."""
    digest = hashlib.sha256(_without_places(config).encode())
    keys: dict[torch.device, torch.Tensor] = {}
    sums: list[torch.Tensor] = []
    for name, parameter in parameters:
        words = _as_words(parameter.detach())
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        if words.device not in keys:
            keys[words.device] = _position_keys(words.device)
        key = keys[words.device]
        sums.extend(_mixed_sum(piece, key[: len(piece)]) for piece in words.split(_PIECE))
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for value in sums:
        by_device.setdefault(value.device, []).append(value)
    for values in by_device.values():
        digest.update(torch.stack(values).cpu().numpy().tobytes())  # one transfer per device
    return digest.hexdigest()[:32]


def _without_places(config: str) -> str:
    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: strip(v) for k, v in value.items() if k not in _NAMES_OF_PLACES}
        return [strip(item) for item in value] if isinstance(value, list) else value

    return json.dumps(strip(json.loads(config)), sort_keys=True)


def _as_words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor as words of eight, the last one filled up with zeros."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    if len(flat) % 8 or flat.storage_offset() % 8:
        flat = torch.nn.functional.pad(flat, (0, -len(flat) % 8)).clone()
    return flat.view(torch.int64)


def _position_keys(device: torch.device) -> torch.Tensor:
    positions = torch.arange(1, _PIECE + 1, dtype=torch.int64, device=device)
    return _mix(_mix(positions)) | 1


def _mix(words: torch.Tensor) -> torch.Tensor:
    words = words * _ODD
    return words.bitwise_xor_(words >> 32)


def _mixed_sum(words: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    # Mixed before they are weighted: else flipped signs could cancel out modulo 2^64.
    return _mix(words ^ keys).mul_(keys).sum()
