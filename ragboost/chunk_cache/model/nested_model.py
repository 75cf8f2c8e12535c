"""Run selected tokens of a prompt through an engine's model, with our attention over a dense cache.

Implements `ReusableModel`, so that assembly, policies and recomputation are those of `chunk_cache`.
The engine's weights and kernels of linear layers are used as they are. Knows RoPE and KV shapes.
Does not know an engine: a subclass runs its model.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ragboost.chunk_cache.model.attention.backend import AttentionInputs
from ragboost.chunk_cache.model.attention.dense import DenseAttention
from ragboost.chunk_cache.model.fingerprint import weights_digest
from ragboost.chunk_cache.model.plan import ForwardPlan, StopForwardError
from ragboost.chunk_cache.model.ranks import ONE_RANK, Ranks, together
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.model.rope import (
    Frequencies,
    RotaryLayout,
    find_layouts,
    read_frequencies,
)
from ragboost.errors import UnsupportedModelError

_PROBE_LENGTH = 8
_PROBE_SHIFT = 5


class NestedLayer(NamedTuple):
    """An attention layer of an engine's model.

    Attributes:
        name: its name among the model's modules.
        num_heads, num_kv_heads, key_dim, value_dim: shapes of queries, keys and values.
        scaling: factor of the scores.
        window: a row at p sees keys above p - window; None: no window.
        softcap: cap of the scores; None: none.
        sinks: a score per head that joins the softmax without a value, (heads,); None: none.
    """

    name: str
    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


class NestedModel(ABC):
    """An engine's model as one that can compute selected tokens.

    Args:
        model: the engine's model.
        shapes: its attention layers in order.
        vocabulary: number of token ids.
        dtype: dtype of keys and values.
        device: device of the model.
        ranks: the processes that hold the model together.

    Attributes:
        model, shapes, ranks: as given.
        name, num_layers, device, dtype, layouts, can_resume: see `ReusableModel`.

    Raises:
        UnsupportedModelError: the keys of this model cannot be moved.
    """

    def __init__(
        self,
        model: Any,
        shapes: Sequence[NestedLayer],
        *,
        vocabulary: int,
        dtype: torch.dtype,
        device: torch.device,
        ranks: Ranks = ONE_RANK,
    ) -> None:
        self.model, self.shapes, self.ranks = model, list(shapes), ranks
        self.name = type(model).__name__
        self.num_layers = len(self.shapes)
        self.device, self.dtype = device, dtype
        self.can_resume = False
        self._vocabulary = vocabulary
        self._frequencies = self._read_frequencies()
        keys = self._probe_keys(0), self._probe_keys(_PROBE_SHIFT)
        self.layouts: tuple[RotaryLayout, ...] = together(
            ranks,
            lambda: find_layouts(
                *keys,
                self._frequencies,
                shift=_PROBE_SHIFT,
                tolerance=self._tolerance,
                model=self.name,
            ),
        )
        self.can_resume = ranks.agree(self._measure_resuming())

    @abstractmethod
    def run(
        self, ids: torch.Tensor, positions: torch.Tensor, cache: RequestCache, plan: ForwardPlan
    ) -> torch.Tensor:
        """Run the model, its attention replaced by `attend`, and return the last row's output: its
        logits, or its hidden states, which every rank has.

        Records `plan.hidden` and begins at `plan.begin`, if `supports_resuming`.

        Args:
            ids: token ids, (rows,).
            positions: their positions for RoPE, (rows,).
            cache: KV of the prompt, prepared for writing the rows.
            plan: the pass.
        """

    @abstractmethod
    def supports_resuming(self) -> bool:
        """Return True if `run` may record and begin at the input of a layer."""

    @abstractmethod
    def config_text(self) -> str:
        """Return the model's configuration as text."""

    def frequencies(self, length: int) -> tuple[Frequencies, ...]:
        """Return the frequencies of each layer, which engines fix when they start."""
        return self._frequencies

    def regime(self, length: int) -> str:
        digests = "".join(frequencies.digest for frequencies in self._frequencies)
        return hashlib.sha256(digests.encode()).hexdigest()[:16]

    def empty_cache(self, length: int) -> RequestCache:
        like = {"dtype": self.dtype, "device": self.device}
        return RequestCache(
            [
                (
                    torch.zeros(1, layer.num_kv_heads, length, layer.key_dim, **like),
                    torch.zeros(1, layer.num_kv_heads, length, layer.value_dim, **like),
                )
                for layer in self.shapes
            ]
        )

    def fingerprint(self) -> str:
        """Return a digest of the configuration and of all weights, see `weights_digest`."""
        return weights_digest(self.config_text(), self.model.named_parameters())

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def forward(
        self, tokens: Sequence[int], cache: RequestCache, *, plan: ForwardPlan
    ) -> torch.Tensor | None:
        rows = plan.positions
        positions = rows if cache.positions is None else cache.positions[rows]
        ids = torch.tensor(list(tokens), device=self.device)
        with cache.writing(rows):
            try:
                return self.run(ids, positions, cache, plan)
            except StopForwardError:
                return None

    def attend(
        self,
        number: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        cache: RequestCache,
        plan: ForwardPlan,
    ) -> torch.Tensor:
        """Return the attention of a layer's rows, (rows, heads * value_dim), over the cache.

        Args:
            number: number of the layer.
            query, key, value: of the rows, (rows, heads * dim) or (rows, heads, dim).
            cache: takes the rows' KV.
            plan: the pass.
        """
        layer = self.shapes[number]
        keys, values = cache.layers[number].update(
            _by_head(key, layer.num_kv_heads, layer.key_dim),
            _by_head(value, layer.num_kv_heads, layer.value_dim),
        )
        inputs = AttentionInputs(
            _by_head(query, layer.num_heads, layer.key_dim),
            keys,
            values,
            plan.positions,
            scaling=layer.scaling,
            window=layer.window,
            softcap=layer.softcap,
            sinks=layer.sinks,
            visible=plan.visible,
            memo=plan.memo,
        )
        plan.windows[number] = inputs.window
        if plan.observe is not None:
            plan.observe(number, inputs)
        backend = plan.backend
        if backend is None or not backend.supports(inputs):
            backend = DenseAttention()
        out = backend.attend(inputs)[0].transpose(0, 1)
        return out.reshape(query.shape[0], -1)

    def _read_frequencies(self) -> tuple[Frequencies, ...]:
        modules = dict(self.model.named_modules())
        by_rotary: dict[int, Frequencies] = {}
        found = []
        for layer in self.shapes:
            owner = modules.get(layer.name.rpartition(".")[0])
            rotary = getattr(owner, "rotary_emb", None)
            table = getattr(rotary, "cos_sin_cache", None)
            if table is None or table.dim() != 2:
                raise UnsupportedModelError(
                    f"{layer.name} of {self.name} has no table of RoPE angles"
                )
            if id(rotary) not in by_rotary:
                by_rotary[id(rotary)] = Frequencies(read_frequencies(table).to(self.device))
            found.append(by_rotary[id(rotary)])
        return tuple(found)

    def _measure_resuming(self) -> bool:
        """Compare a pass with one that begins at its second layer. They differ if the layers get
        more than hidden states from the earlier ones."""
        if self.num_layers < 2 or not self.supports_resuming():
            return False
        rows = torch.arange(_PROBE_LENGTH, device=self.device)
        cache, tokens = self.empty_cache(_PROBE_LENGTH), self._probe_tokens()
        whole = ForwardPlan(rows, keep=1)
        want = self.forward(tokens, cache, plan=whole)
        if whole.hidden is None or want is None:
            return False
        got = self.forward(tokens, cache, plan=ForwardPlan(rows, begin=whole.hidden))
        assert got is not None, "no observer stops this pass"
        limit = self._tolerance * float(want.float().abs().max())
        return bool((got.float() - want.float()).abs().max() <= limit)

    def _probe_tokens(self) -> list[int]:
        return probe_tokens(_PROBE_LENGTH, self._vocabulary)

    @property
    def _tolerance(self) -> float:
        return 1e-3 if self.dtype == torch.float32 else 0.05

    def _probe_keys(self, shift: int) -> list[torch.Tensor]:
        rows = torch.arange(_PROBE_LENGTH, device=self.device)
        cache = self.empty_cache(_PROBE_LENGTH)
        cache.positions = rows + shift
        self.forward(self._probe_tokens(), cache, plan=ForwardPlan(rows))
        return [layer.keys for layer in cache.layers]


def find_decoder(model: nn.Module, num_layers: int) -> Sequence[Any]:
    """Return the decoder layers; none if the model has no list of them."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return list(module)
    return []


def probe_tokens(count: int, vocabulary: int) -> list[int]:
    """Return token ids for measurements."""
    return [(17 * i * i + 5 * i + 3) % vocabulary for i in range(count)]


def _by_head(states: torch.Tensor, heads: int, dim: int) -> torch.Tensor:
    """Return (1, heads, rows, dim) of (rows, heads * dim)."""
    return states.reshape(states.shape[0], heads, dim).transpose(0, 1)[None]
