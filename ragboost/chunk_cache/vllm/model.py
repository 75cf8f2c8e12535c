"""Run selected tokens of a prompt through vLLM's model: only the attention layers are replaced, for
the duration of one nested forward pass. Does not know the paged cache."""

from functools import partial
from inspect import signature
from typing import Any

import torch

from ragboost.chunk_cache.core.engine.layer_forward import replaced_forward, resuming_forwards
from ragboost.chunk_cache.model.nested_model import NestedModel, find_decoder
from ragboost.chunk_cache.model.plan import ForwardPlan, Hidden
from ragboost.chunk_cache.model.ranks import Ranks
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.vllm.compat import attention_layers, describe_layer, nested_forward


class EngineModel(NestedModel):
    def __init__(self, model: Any, config: Any, *, device: torch.device, ranks: Ranks) -> None:
        self.layers = attention_layers(config, model=type(model).__name__)
        self._decoder = find_decoder(model, len(self.layers))
        self._config = config
        super().__init__(
            model,
            [describe_layer(layer) for layer in self.layers],
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
        forwards = resuming_forwards(self._decoder, plan, record=_record, resume=_resume)
        for number, layer in enumerate(self.layers):
            forwards[layer] = partial(self._attend, number, cache=cache, plan=plan)
        with replaced_forward(forwards), nested_forward(self._config, len(ids)):
            hidden: torch.Tensor = self.model(input_ids=ids, positions=positions)
        return hidden[-1]

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


def _record(plan: ForwardPlan, forward: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Record the input of a decoder layer: hidden states and residual side by side."""
    inputs = signature(forward).bind(layer, *args, **kwargs).arguments
    hidden, residual = inputs["hidden_states"], inputs["residual"]
    if residual is not None:
        states = torch.cat([hidden, residual], -1)[None]
        plan.hidden = Hidden(plan.keep or 0, plan.positions, states)
    return forward(layer, *args, **kwargs)


def _resume(
    plan: ForwardPlan, forward: Any, layer: Any, number: int, *args: Any, **kwargs: Any
) -> Any:
    """Skip a decoder layer before `plan.begin`, or run the first one with its states."""
    inputs = signature(forward).bind(layer, *args, **kwargs)
    assert plan.begin is not None, "a pass that begins nowhere"
    if number < plan.begin.layer:
        return inputs.arguments["hidden_states"], inputs.arguments["residual"]
    hidden, residual = plan.begin.states[0].chunk(2, dim=-1)
    # The kernels of norms write in place.
    inputs.arguments["hidden_states"] = hidden.clone(memory_format=torch.contiguous_format)
    inputs.arguments["residual"] = residual.clone(memory_format=torch.contiguous_format)
    return forward(*inputs.args, **inputs.kwargs)
