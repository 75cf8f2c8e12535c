"""Run selected tokens of a prompt through vLLM's model: only the attention layers are replaced, for
the duration of one nested forward pass. Does not know the paged cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ragboost.chunk_cache.model.nested_model import NestedModel
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.model.ranks import Ranks
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.vllm.compat import attention_layers, describe_layer, nested_forward


class EngineModel(NestedModel):
    def __init__(self, model: Any, config: Any, *, device: torch.device, ranks: Ranks) -> None:
        self.layers = attention_layers(config, model=type(model).__name__)
        self._config = config
        super().__init__(
            model,
            config.model_config.hf_config,
            [describe_layer(layer) for layer in self.layers],
            vocabulary=int(config.model_config.get_vocab_size()),
            dtype=config.model_config.dtype,
            device=device,
            ranks=ranks,
        )

    def run(
        self, ids: torch.Tensor, positions: torch.Tensor, cache: RequestCache, plan: ForwardPlan
    ) -> torch.Tensor:
        with self._attending(cache, plan), nested_forward(self._config, len(ids)):
            hidden: torch.Tensor = self.model(input_ids=ids, positions=positions)
        return hidden[-1]

    @contextmanager
    def _attending(self, cache: RequestCache, plan: ForwardPlan) -> Iterator[None]:
        for number, layer in enumerate(self.layers):
            layer.forward = partial(self._attend, number, cache=cache, plan=plan)
        try:
            yield
        finally:
            for layer in self.layers:
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
