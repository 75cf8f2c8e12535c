"""Run selected tokens of a prompt through SGLang's model.

SGLang's attention layers ask the current `ForwardContext` for their backend; a nested pass has a
context of its own, so that nothing of SGLang is replaced.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from sglang.srt.layers.layer_boundary.residual.stream import ResidualStream
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from torch import nn

from ragboost.chunk_cache.model.nested_model import NestedLayer, NestedModel, find_decoder
from ragboost.chunk_cache.model.plan import ForwardPlan, Hidden
from ragboost.chunk_cache.model.ranks import Ranks
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.sglang.compat import extend_batch
from ragboost.errors import UnsupportedModelError


class SGLangModel(NestedModel):
    """SGLang's model as one that can compute selected tokens.

    Args:
        runner: SGLang's model runner, with the model loaded and the KV pool allocated.
        ranks: the processes that hold the model together.

    Attributes:
        layers: SGLang's attention layers in order.

    Raises:
        UnsupportedModelError: the keys of this model cannot be moved.
    """

    def __init__(self, runner: Any, *, ranks: Ranks) -> None:
        self._runner = runner
        self._updates: dict[int, Any] = {}  # how each layer's input joins the residual
        model = runner.model
        named = _attention_layers(model)
        self.layers = [layer for _, layer in named]
        self._decoder = find_decoder(model, len(named))
        super().__init__(
            model,
            [_describe(name, layer) for name, layer in named],
            vocabulary=int(runner.model_config.vocab_size),
            dtype=runner.token_to_kv_pool.dtype,
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
        batch = extend_batch(self._runner, ids, positions)
        attention = _PlannedAttention(self, cache, plan)
        with forward_context(ForwardContext(attn_backend=attention)), self._resuming(plan):
            output = self.model.forward(ids, positions, batch)
        logits: torch.Tensor = output.next_token_logits[-1]
        return logits

    @contextmanager
    def _resuming(self, plan: ForwardPlan) -> Iterator[None]:
        """Record the input of the layer `plan.keep`, and begin at the layer of `plan.begin`."""
        last = -1 if plan.begin is None else plan.begin.layer
        changed = [self._decoder[number] for number in range(last + 1)]
        for number, layer in enumerate(changed):
            layer.forward = partial(self._resume, plan, type(layer).forward, layer, number)
        if plan.keep is not None and plan.keep > last and self._decoder:
            kept = self._decoder[plan.keep]
            kept.forward = partial(self._record, plan, type(kept).forward, kept)
            changed.append(kept)
        try:
            yield
        finally:
            for layer in changed:
                del layer.forward

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
        stream = batch.residual_stream
        pending = None if stream is None else stream.pending
        if pending is not None and pending.owed is None and stream.residual is not None:
            self._updates[plan.keep or 0] = pending.update
            states = torch.cat([hidden, stream.residual], -1)[None]
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
        hidden, batch.residual_stream = ResidualStream.from_handoff(
            states, residual, self._updates[number]
        )
        return forward(layer, positions, hidden, batch, *args, **kwargs)


class _PlannedAttention:
    """SGLang's attention backend during one nested pass."""

    def __init__(self, model: SGLangModel, cache: RequestCache, plan: ForwardPlan) -> None:
        pools = model._runner
        self.token_to_kv_pool, self.req_to_token_pool = (
            pools.token_to_kv_pool,
            pools.req_to_token_pool,
        )
        self._model, self._cache, self._plan = model, cache, plan

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: RadixAttention,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **options: Any,
    ) -> torch.Tensor:
        """Attend over the dense cache of the pass."""
        if any(option is not None for option in options.values()):
            raise UnsupportedModelError(
                f"{self._model.name} gives its attention {', '.join(sorted(options))}"
            )
        return self._model.attend(
            layer.layer_id, query, key, value, cache=self._cache, plan=self._plan
        )


def _attention_layers(model: nn.Module) -> list[tuple[str, Any]]:
    """Return the attention layers in order, with their names."""
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, RadixAttention)
    ]
    found.sort(key=lambda item: item[1].layer_id)
    if [layer.layer_id for _, layer in found] != list(range(len(found))) or not found:
        raise UnsupportedModelError(f"{type(model).__name__} has not one attention in every layer")
    return found


def _describe(name: str, layer: Any) -> NestedLayer:
    """Return the properties of an attention layer.

    Raises:
        UnsupportedModelError: our attention is not its.
    """
    refused = {
        "attention that is not causal": layer.attn_type != AttentionType.DECODER,
        "cross-attention": layer.is_cross_attention,
        "chunked attention": layer.use_irope,
        "temperature scaling": layer.xai_temperature_len > 0,
        "scaled keys": layer.k_scale is not None or layer.v_scale is not None,
    }
    for what, is_refused in refused.items():
        if is_refused:
            raise UnsupportedModelError(f"{name} has {what}")
    # SGLang's window counts the keys before a row, ours the row as well.
    window = layer.sliding_window_size + 1 if layer.sliding_window_size > -1 else None
    return NestedLayer(
        name,
        layer.tp_q_head_num,
        layer.tp_k_head_num,
        layer.qk_head_dim,
        layer.v_head_dim,
        float(layer.scaling),
        window=window,
        softcap=layer.logit_cap or None,
    )
