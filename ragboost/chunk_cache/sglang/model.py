"""Run selected tokens of a prompt through SGLang's model. Its attention layers ask the current
`ForwardContext` for their backend; a nested pass has one of its own."""

from typing import Any

import torch

from ragboost.chunk_cache.model.nested_model import NestedModel
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.model.ranks import Ranks
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.sglang.compat import (
    attention_layers,
    describe_layer,
    extend_batch,
    nested_forward,
)
from ragboost.errors import UnsupportedModelError


class SGLangModel(NestedModel):
    def __init__(self, runner: Any, *, ranks: Ranks) -> None:
        self._runner = runner
        layers = attention_layers(runner.model)
        self.layers = [layer for _, layer in layers]
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

    def run(
        self, ids: torch.Tensor, positions: torch.Tensor, cache: RequestCache, plan: ForwardPlan
    ) -> torch.Tensor:
        with nested_forward(self._runner, _PlannedAttention(self, cache, plan)):
            output = self.model.forward(ids, positions, extend_batch(ids, positions))
        logits: torch.Tensor = output.next_token_logits[-1]
        return logits


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
