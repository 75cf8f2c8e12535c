"""Run selected tokens of a prompt through SGLang's model. Its attention layers ask the current
`ForwardContext` for their backend; a nested pass has one of its own."""

from typing import Any

import torch

from ragboost.chunk_cache.core.engine.layer_forward import replaced_forward, resuming_forwards
from ragboost.chunk_cache.model.nested_model import NestedModel, find_decoder
from ragboost.chunk_cache.model.plan import ForwardPlan, Hidden
from ragboost.chunk_cache.model.ranks import Ranks
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.sglang.compat import (
    attention_layers,
    describe_layer,
    extend_batch,
    nested_forward,
    pending_residual,
    set_residual,
)
from ragboost.errors import UnsupportedModelError


class SGLangModel(NestedModel):
    def __init__(self, runner: Any, *, ranks: Ranks) -> None:
        self._runner = runner
        self._updates: dict[int, Any] = {}  # how each layer's input joins the residual
        layers = attention_layers(runner.model)
        self.layers = [layer for _, layer in layers]
        self._decoder = find_decoder(runner.model, len(layers))
        super().__init__(
            runner.model,
            [describe_layer(name, layer) for name, layer in layers],
            vocabulary=int(runner.model_config.vocab_size),
            dtype=runner.dtype,
            device=torch.device(runner.device),
            ranks=ranks,
        )

    def config_text(self) -> str:
        text: str = self._runner.model_config.hf_config.to_json_string(use_diff=False)
        return text

    def supports_resuming(self) -> bool:
        return bool(self._decoder)

    def run(
        self, ids: torch.Tensor, positions: torch.Tensor, cache: RequestCache, plan: ForwardPlan
    ) -> torch.Tensor:
        forwards = resuming_forwards(self._decoder, plan, record=self._record, resume=self._resume)
        attention = _PlannedAttention(self, cache, plan)
        with nested_forward(self._runner, attention), replaced_forward(forwards):
            output = self.model.forward(ids, positions, extend_batch(ids, positions))
        logits: torch.Tensor = output.next_token_logits[-1]
        return logits

    def _record(
        self,
        plan: ForwardPlan,
        forward: Any,
        layer: Any,
        positions: torch.Tensor,
        hidden: Any,
        batch: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Record the input of a decoder layer: hidden states and residual side by side."""
        pending = pending_residual(batch)
        if pending is not None:
            residual, self._updates[plan.keep or 0] = pending
            states = torch.cat([hidden, residual], -1)[None]
            plan.hidden = Hidden(plan.keep or 0, plan.positions, states)
        return forward(layer, positions, hidden, batch, *args, **kwargs)

    def _resume(
        self,
        plan: ForwardPlan,
        forward: Any,
        layer: Any,
        number: int,
        positions: torch.Tensor,
        hidden: Any,
        batch: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Skip a decoder layer before `plan.begin`, or run the first one with its states."""
        assert plan.begin is not None, "a pass that begins nowhere"
        if number < plan.begin.layer:
            return hidden
        states, residual = (
            # The kernels of norms write in place.
            part.clone(memory_format=torch.contiguous_format)
            for part in plan.begin.states[0].chunk(2, dim=-1)
        )
        hidden = set_residual(batch, states, residual, self._updates[number])
        return forward(layer, positions, hidden, batch, *args, **kwargs)


class _PlannedAttention:
    def __init__(self, model: SGLangModel, cache: RequestCache, plan: ForwardPlan) -> None:
        self._model, self._cache, self._plan = model, cache, plan

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **options: Any,
    ) -> torch.Tensor:
        if any(option is not None for option in options.values()):
            raise UnsupportedModelError(
                f"{self._model.name} gives its attention {', '.join(sorted(options))}"
            )
        return self._model.attend(
            layer.layer_id, query, key, value, cache=self._cache, plan=self._plan
        )
