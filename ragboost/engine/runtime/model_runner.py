"""Run a Hugging Face causal LM over the KV of one request, through transformers' public API only.
Does not know requests, schedules or cached blocks."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from ragboost.chunk_cache.model.adapter import install_attention, run_planned
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.model.reusable_model import probe_tokens
from ragboost.engine.runtime.attention import TrailingAttention
from ragboost.engine.runtime.kv import KVLayout, RequestKV
from ragboost.errors import ConfigError, UnsupportedModelError

logger = logging.getLogger(__name__)

_LAYER_TYPES = {"full_attention", "sliding_attention"}
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}  # of the largest logit
_TOLERANCE_HALF = 5e-2


class ModelRunner:
    """A model that computes any run of a prompt, or a decode row, over earlier KV; its attention
    follows a plan. Raises `ConfigError` if the result differs from the plain forward's."""

    def __init__(self, model: Any, *, max_length: int | None = None) -> None:
        self.model = model.eval()
        config = model.config.get_text_config()
        self.vocab_size: int = config.vocab_size
        self.max_length = _max_length(config, max_length)
        if unknown := set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES:
            raise _unsupported(model, f"it has layers of type {', '.join(sorted(unknown))}")
        probe = torch.tensor(probe_tokens(24, self.vocab_size), device=model.device)
        expected = self._plain_logits(probe)
        self.layout = self._probe_layout(probe)
        install_attention(model)
        self._self_test(probe, expected)

    @property
    def device(self) -> Any:
        return self.model.device

    def new_kv(self, capacity: int) -> RequestKV:
        return RequestKV(self.layout, capacity)

    def forward(
        self, token_ids: Sequence[int], kv: RequestKV, *, start: int, num_logits: int = 1
    ) -> Tensor:
        """Compute tokens from position `start` on over the KV before them, and write theirs; return
        the logits of the last rows, as many as wanted, (rows, vocab) float32."""
        rows = torch.arange(start, start + len(token_ids), device=self.device)
        plan = ForwardPlan(rows, backend=TrailingAttention())
        return self._run(token_ids, kv, plan=plan, num_logits=num_logits)

    def _run(
        self, token_ids: Sequence[int], kv: RequestKV, *, plan: ForwardPlan, num_logits: int
    ) -> Tensor:
        cache = kv.cache(int(plan.positions[-1]) + 1)
        ids = torch.tensor(list(token_ids), device=self.device)
        with torch.inference_mode(), cache.writing(plan.positions):
            logits = run_planned(
                self.model, ids, plan.positions, cache=cache, plan=plan, num_logits=num_logits
            )
        return logits.float()

    def _plain_logits(self, ids: Tensor) -> Tensor:
        with torch.inference_mode():
            return self.model(input_ids=ids[None], use_cache=False).logits[0].float()

    def _probe_layout(self, ids: Tensor) -> KVLayout:
        """Read the shapes from a forward; no config has them for every architecture."""
        cache = DynamicCache()
        try:
            with torch.inference_mode():
                self.model(input_ids=ids[None, :1], past_key_values=cache, use_cache=True)
        except (TypeError, ValueError, AttributeError) as error:
            raise _unsupported(self.model, f"its forward accepts no KV cache ({error})") from error
        layers = []
        for layer in cache.layers:
            if not isinstance(layer, DynamicLayer) or layer.keys is None:
                raise _unsupported(self.model, f"a layer caches no keys and values ({layer!r})")
            keys, values = layer.keys, layer.values
            layers.append((keys.shape[1], keys.shape[3], values.shape[3]))
        if not layers:
            raise _unsupported(self.model, "it caches no keys and values")
        return KVLayout(tuple(layers), cache.layers[0].keys.dtype, cache.layers[0].keys.device)

    def _self_test(self, ids: Tensor, expected: Tensor) -> None:
        tokens, kv = ids.tolist(), self.new_kv(len(ids))
        rows = torch.arange(9, len(tokens), device=self.device)
        plan = ForwardPlan(rows, backend=TrailingAttention())
        try:
            self.forward(tokens[:9], kv, start=0)
            actual = self._run(tokens[9:], kv, plan=plan, num_logits=1)
        except (TypeError, KeyError, IndexError, RuntimeError, UnsupportedModelError) as error:
            raise _unsupported(self.model, f"its attention failed ({error})") from error
        difference = float((actual[-1] - expected[-1]).abs().max())
        limit = _TOLERANCE.get(self.layout.dtype, _TOLERANCE_HALF) * float(expected.abs().max())
        if not difference <= limit:
            raise _unsupported(
                self.model, f"logits differ from the plain forward by {difference:.3g}"
            )
        # The probe is shorter than any window; check that the layers pass theirs at all.
        windows = {*plan.windows.values()}
        if has_window(self.model.config.get_text_config()) and not windows - {None}:
            raise _unsupported(
                self.model, "its layers do not pass their sliding window to the attention function"
            )
        logger.info("self-test passed: logits differ by %.2g at most", difference)


def _max_length(config: Any, requested: int | None) -> int:
    limit = int(getattr(config, "max_position_embeddings", None) or 0)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        # Beyond this length these RoPE types rotate all keys differently, cached ones too.
        limit = int(rope.get("original_max_position_embeddings") or limit)
    if requested is not None and limit and requested > limit:
        raise ConfigError(
            f"engine.max_model_len must be at most {limit} (the model), got {requested}"
        )
    return requested or limit or 32_768


def has_window(config: Any) -> bool:
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    return window is not None and (types is None or "sliding_attention" in types)


def _unsupported(model: Any, reason: str) -> ConfigError:
    return ConfigError(
        f"engine.model: {type(model).__name__} cannot be served by the embedded engine: {reason}; "
        "use a decoder with full or sliding-window attention, or vLLM or SGLang for this model"
    )
