"""Run selected tokens of a prompt through an engine's model, with our attention over a dense cache,
and its own weights and kernels of linear layers. A subclass runs its model."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ragboost.chunk_cache.model.attention.backend import AttentionInputs
from ragboost.chunk_cache.model.attention.dense import DenseAttention
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.model.ranks import ONE_RANK, Ranks
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.model.reusable_model import ReusableModel
from ragboost.chunk_cache.model.rope import Frequencies, read_frequencies
from ragboost.errors import UnsupportedModelError


class NestedLayer(NamedTuple):
    name: str  # among the model's modules
    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    scaling: float
    window: int | None = None  # a row at p sees keys above p - window
    softcap: float | None = None
    sinks: torch.Tensor | None = None  # (heads,); each joins the softmax without a value


class NestedModel(ReusableModel):
    def __init__(
        self,
        model: Any,
        config: Any,
        shapes: Sequence[NestedLayer],
        *,
        vocabulary: int,
        dtype: torch.dtype,
        device: torch.device,
        ranks: Ranks = ONE_RANK,
    ) -> None:
        super().__init__(
            model,
            config,
            num_layers=len(shapes),
            vocabulary=vocabulary,
            dtype=dtype,
            device=device,
            ranks=ranks,
        )
        self.shapes = list(shapes)
        self.kv_shapes = [(each.num_kv_heads, each.key_dim, each.value_dim) for each in shapes]
        self._frequencies = self._read_frequencies()
        self.measure()

    def frequencies(self, length: int) -> tuple[Frequencies, ...]:
        """Return the frequencies of each layer, which engines fix when they start."""
        return self._frequencies

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def forward(
        self, tokens: Sequence[int], cache: RequestCache, *, plan: ForwardPlan
    ) -> torch.Tensor | None:
        return super().forward(tokens, cache, plan=plan)

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
        """Return the attention of a layer's rows, (rows, heads * value_dim), over the cache;
        `query`, `key`, `value` are (rows, heads * dim) or (rows, heads, dim)."""
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
        out = plan.attend(number, inputs)
        if out is None:
            out = DenseAttention().attend(inputs)
        return out[0].transpose(0, 1).reshape(query.shape[0], -1)

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


def _by_head(states: torch.Tensor, heads: int, dim: int) -> torch.Tensor:
    return states.reshape(states.shape[0], heads, dim).transpose(0, 1)[None]
