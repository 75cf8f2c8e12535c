"""Run selected tokens of a prompt through vLLM's model, with our attention over a dense cache.

Implements `ReusableModel`, so that assembly, policies and recomputation are those of `chunk_cache`.
vLLM's weights, kernels of linear layers and parallelism are used as they are; only the attention
layers are replaced, for the duration of one nested forward pass. Knows RoPE and KV shapes. Does not
know the paged cache.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import nn

from ragboost.chunk_cache.kv.request_cache import RequestCache
from ragboost.chunk_cache.model.attention.base import AttentionInputs
from ragboost.chunk_cache.model.attention.dense import DenseAttention
from ragboost.chunk_cache.model.plan import ForwardPlan, Hidden, StopForwardError
from ragboost.chunk_cache.model.rope import Frequencies, RotaryLayout, find_layouts
from ragboost.engine_chunks.rotary import read_frequencies
from ragboost.engine_chunks.vllm.compat import attention_layers, nested_forward
from ragboost.errors import UnsupportedModelError

_PROBE_LENGTH = 8
_PROBE_SHIFT = 5


class EngineModel:
    """vLLM's model as one that can compute selected tokens.

    Args:
        model: the model of vLLM's runner.
        config: vLLM's configuration.
        device: device of the model.

    Attributes:
        layers: vLLM's attention layers in order.
        name, num_layers, device, dtype, layouts, can_resume: see `ReusableModel`.

    Raises:
        UnsupportedModelError: the keys of this model cannot be moved.
    """

    def __init__(self, model: Any, config: Any, *, device: torch.device) -> None:
        self.layers = attention_layers(config)
        self.name = type(model).__name__
        self.num_layers = len(self.layers)
        self.device = device
        self.dtype: torch.dtype = config.model_config.dtype
        self.can_resume = False
        self._decoder = _find_decoder(model, self.num_layers)
        self._model, self._config = model, config
        self._vocabulary = int(config.model_config.get_vocab_size())
        self._check_layers()
        self._frequencies = self._read_frequencies()
        self.layouts: tuple[RotaryLayout, ...] = self._measure_layouts()
        self.can_resume = self._measure_resuming()

    def frequencies(self, length: int) -> tuple[Frequencies, ...]:
        """Return the frequencies of each layer, which do not depend on the length in vLLM."""
        return self._frequencies

    def regime(self, length: int) -> str:
        digests = "".join(frequencies.digest for frequencies in self._frequencies)
        return hashlib.sha256(digests.encode()).hexdigest()[:16]

    def empty_cache(self, length: int) -> RequestCache:
        like = {"dtype": self.dtype, "device": self.device}
        return RequestCache(
            [
                (
                    torch.zeros(1, layer.num_kv_heads, length, layer.head_size, **like),
                    torch.zeros(1, layer.num_kv_heads, length, layer.head_size_v, **like),
                )
                for layer in self.layers
            ]
        )

    def fingerprint(self) -> str:
        """Return a digest of the configuration and of a sample of each weight tensor."""
        config = self._config.model_config.hf_config.to_json_string(use_diff=False)
        digest = hashlib.sha256(config.encode())
        for name, parameter in self._model.named_parameters():
            flat = parameter.detach().flatten()
            sample = flat[:: max(1, flat.numel() // 64)].float().cpu()
            digest.update(name.encode() + sample.numpy().tobytes())
        return digest.hexdigest()[:32]

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def forward(
        self, tokens: Sequence[int], cache: RequestCache, *, plan: ForwardPlan
    ) -> torch.Tensor | None:
        rows = plan.positions
        positions = rows if cache.positions is None else cache.positions[rows]
        ids = torch.tensor(list(tokens), device=self.device)
        with (
            cache.writing(rows),
            self._attending(cache, plan),
            self._resuming(plan),
            nested_forward(self._config, len(tokens)),
        ):
            try:
                hidden = self._model(input_ids=ids, positions=positions)
            except StopForwardError:
                return None
        logits: torch.Tensor = self._model.compute_logits(hidden[-1:])[0]
        return logits

    @contextmanager
    def _attending(self, cache: RequestCache, plan: ForwardPlan) -> Iterator[None]:
        """Replace the attention of every layer."""
        for number, layer in enumerate(self.layers):
            layer.forward = partial(self._attend, number, cache=cache, plan=plan)
        try:
            yield
        finally:
            for layer in self.layers:
                del layer.forward

    @contextmanager
    def _resuming(self, plan: ForwardPlan) -> Iterator[None]:
        """Record the input of the layer `plan.keep`, and begin at the layer of `plan.begin`."""
        last = -1 if plan.begin is None else plan.begin.layer
        changed = [self._decoder[number] for number in range(last + 1)]
        for number, layer in enumerate(changed):
            layer.forward = partial(_resume, plan, type(layer).forward, layer, number)
        if plan.keep is not None and plan.keep > last:
            kept = self._decoder[plan.keep]
            kept.forward = partial(_record, plan, type(kept).forward, kept)
            changed.append(kept)
        try:
            yield
        finally:
            for layer in changed:
                del layer.forward

    def _attend(
        self,
        number: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        output_shape: torch.Size | None = None,
        output_dtype: torch.dtype | None = None,
        *,
        cache: RequestCache,
        plan: ForwardPlan,
    ) -> torch.Tensor:
        layer = self.layers[number]
        keys, values = cache.layers[number].update(
            _by_head(key, layer.num_kv_heads, layer.head_size),
            _by_head(value, layer.num_kv_heads, layer.head_size_v),
        )
        inputs = AttentionInputs(
            _by_head(query, layer.num_heads, layer.head_size),
            keys,
            values,
            plan.positions,
            scaling=float(layer.impl.scale),
            window=layer.sliding_window,
            softcap=getattr(layer.impl, "logits_soft_cap", None) or None,
            sinks=getattr(layer.impl, "sinks", None),
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

    def _check_layers(self) -> None:
        if any(layer.kv_sharing_target_layer_name is not None for layer in self.layers):
            raise UnsupportedModelError(f"{self.name} shares KV between layers")
        if any(getattr(layer.impl, "alibi_slopes", None) is not None for layer in self.layers):
            raise UnsupportedModelError(f"{self.name} has ALiBi instead of RoPE")

    def _read_frequencies(self) -> tuple[Frequencies, ...]:
        modules = dict(self._model.named_modules())
        by_rotary: dict[int, Frequencies] = {}
        found = []
        for layer in self.layers:
            owner = modules.get(layer.layer_name.rpartition(".")[0])
            rotary = getattr(owner, "rotary_emb", None)
            table = getattr(rotary, "cos_sin_cache", None)
            if table is None or table.dim() != 2:
                raise UnsupportedModelError(
                    f"{layer.layer_name} of {self.name} has no table of RoPE angles"
                )
            if id(rotary) not in by_rotary:
                by_rotary[id(rotary)] = Frequencies(read_frequencies(table).to(self.device))
            found.append(by_rotary[id(rotary)])
        return tuple(found)

    def _measure_layouts(self) -> tuple[RotaryLayout, ...]:
        """Determine the layouts by comparing keys at two positions, as `ModelAdapter` does."""
        return find_layouts(
            self._probe_keys(0),
            self._probe_keys(_PROBE_SHIFT),
            self._frequencies,
            shift=_PROBE_SHIFT,
            tolerance=self._tolerance,
            model=self.name,
        )

    def _measure_resuming(self) -> bool:
        """Compare a pass with one that begins at its second layer. They differ if the layers get
        more than hidden states from the earlier ones."""
        names = ("hidden_states", "residual")
        if self.num_layers < 2 or not self._decoder:
            return False
        if any(name not in signature(type(self._decoder[0]).forward).parameters for name in names):
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


def _find_decoder(model: nn.Module, num_layers: int) -> Sequence[Any]:
    """Return the decoder layers; none if the model has no list of them."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return list(module)
    return []


def _record(plan: ForwardPlan, forward: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Record the input of a decoder layer: hidden states and residual side by side."""
    given = signature(forward).bind(layer, *args, **kwargs).arguments
    hidden, residual = given["hidden_states"], given["residual"]
    if residual is not None:
        states = torch.cat([hidden, residual], -1)[None]
        plan.hidden = Hidden(plan.keep or 0, plan.positions, states)
    return forward(layer, *args, **kwargs)


def _resume(
    plan: ForwardPlan, forward: Any, layer: Any, number: int, *args: Any, **kwargs: Any
) -> Any:
    """Skip a decoder layer before `plan.begin`, or run the first one with its states."""
    given = signature(forward).bind(layer, *args, **kwargs)
    assert plan.begin is not None, "a pass that begins nowhere"
    if number < plan.begin.layer:
        return given.arguments["hidden_states"], given.arguments["residual"]
    hidden, residual = plan.begin.states[0].chunk(2, dim=-1)
    # The kernels of norms write in place.
    given.arguments["hidden_states"] = hidden.clone(memory_format=torch.contiguous_format)
    given.arguments["residual"] = residual.clone(memory_format=torch.contiguous_format)
    return forward(*given.args, **given.kwargs)


def probe_tokens(count: int, vocabulary: int) -> list[int]:
    """Return token ids for measurements."""
    return [(17 * i * i + 5 * i + 3) % vocabulary for i in range(count)]


def _by_head(states: torch.Tensor, heads: int, dim: int) -> torch.Tensor:
    """Return (1, heads, rows, dim) of (rows, heads * dim)."""
    return states.reshape(states.shape[0], heads, dim).transpose(0, 1)[None]
