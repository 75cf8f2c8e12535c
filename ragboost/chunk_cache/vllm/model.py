"""Run selected tokens of a prompt through vLLM's model, with our attention over a dense cache.

vLLM's weights, kernels of linear layers and parallelism are used as they are; only the attention
layers are replaced, for the duration of one nested forward pass. Does not know the paged cache.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any

import torch

from ragboost.chunk_cache.model.nested_model import NestedLayer, NestedModel, find_decoder
from ragboost.chunk_cache.model.plan import ForwardPlan, Hidden
from ragboost.chunk_cache.model.ranks import ONE_RANK, Ranks
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.vllm.compat import attention_layers, nested_forward
from ragboost.errors import UnsupportedModelError


class EngineModel(NestedModel):
    """vLLM's model as one that can compute selected tokens.

    Args:
        model: the model of vLLM's runner.
        config: vLLM's configuration.
        device: device of the model.
        ranks: the processes that hold the model together.

    Attributes:
        layers: vLLM's attention layers in order.

    Raises:
        UnsupportedModelError: the keys of this model cannot be moved.
    """

    def __init__(
        self, model: Any, config: Any, *, device: torch.device, ranks: Ranks = ONE_RANK
    ) -> None:
        self.layers = attention_layers(config)
        self._decoder = find_decoder(model, len(self.layers))
        self._config = config
        self._check_layers(type(model).__name__)
        super().__init__(
            model,
            [_describe(layer) for layer in self.layers],
            vocabulary=int(config.model_config.get_vocab_size()),
            dtype=config.model_config.dtype,
            device=device,
            ranks=ranks,
        )

    def config_text(self) -> str:
        text: str = self._config.model_config.hf_config.to_json_string(use_diff=False)
        return text

    def supports_resuming(self) -> bool:
        names = ("hidden_states", "residual")
        if not self._decoder:
            return False
        parameters = signature(type(self._decoder[0]).forward).parameters
        return all(name in parameters for name in names)

    def run(
        self, ids: torch.Tensor, positions: torch.Tensor, cache: RequestCache, plan: ForwardPlan
    ) -> torch.Tensor:
        with (
            self._attending(cache, plan),
            self._resuming(plan),
            nested_forward(self._config, len(ids)),
        ):
            hidden: torch.Tensor = self.model(input_ids=ids, positions=positions)
        return hidden[-1]

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
        return self.attend(number, query, key, value, cache=cache, plan=plan)

    def _check_layers(self, name: str) -> None:
        if any(layer.kv_sharing_target_layer_name is not None for layer in self.layers):
            raise UnsupportedModelError(f"{name} shares KV between layers")
        if any(getattr(layer.impl, "alibi_slopes", None) is not None for layer in self.layers):
            raise UnsupportedModelError(f"{name} has ALiBi instead of RoPE")


def _describe(layer: Any) -> NestedLayer:
    """Return the properties of an attention layer."""
    return NestedLayer(
        layer.layer_name,
        layer.num_heads,
        layer.num_kv_heads,
        layer.head_size,
        layer.head_size_v,
        float(layer.impl.scale),
        window=layer.sliding_window,
        softcap=getattr(layer.impl, "logits_soft_cap", None) or None,
        sinks=getattr(layer.impl, "sinks", None),
    )


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
