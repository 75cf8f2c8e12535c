"""Run selected tokens of a prompt through a Hugging Face decoder model, by its public API only. Its
attention follows the `ForwardPlan` of a call; other calls are unchanged."""

import sys
import threading
from collections.abc import Callable, Collection
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import DynamicCache

from ragboost.chunk_cache.model.attention.backend import AttentionInputs
from ragboost.chunk_cache.model.attention.dense import DenseAttention
from ragboost.chunk_cache.model.plan import PLAN, ForwardPlan
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.model.reusable_model import PROBE_LENGTH, ReusableModel
from ragboost.chunk_cache.model.rope import Frequencies
from ragboost.errors import UnsupportedModelError

_PREFIX = "ragboost_planned_"


def install_attention(model: Any) -> None:
    """Replace the model's attention; without a plan its results stay bit-identical. Setting another
    implementation removes it."""
    original: str = model.config._attn_implementation
    if original.startswith(_PREFIX):
        return
    name = _PREFIX + original

    def attention(module: Any, *args: Any, **kwargs: Any) -> Any:
        plan: ForwardPlan | None = kwargs.pop(PLAN, None)
        if plan is None:
            return _implementation(original, module)(module, *args, **kwargs)
        return _planned(plan, original, module, *args, **kwargs)

    AttentionInterface.register(name, attention)
    masks = AttentionMaskInterface()
    if original in masks:
        AttentionMaskInterface.register(name, masks[original])
    model.set_attn_implementation(name)


def _planned(
    plan: ForwardPlan,
    original: str,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    window: int | None = kwargs.get("sliding_window")
    scaling = kwargs.get("scaling")
    inputs = AttentionInputs(
        query,
        key,
        value,
        plan.positions,
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window=window,
        softcap=kwargs.get("softcap"),
        sinks=kwargs.get("s_aux"),
        visible=plan.visible,
        memo=plan.memo,
    )
    done = plan.attend(module.layer_idx, inputs)
    if done is None and original not in ("eager", "sdpa"):
        done = DenseAttention().attend(inputs)
    if done is not None:
        return done.transpose(1, 2).contiguous(), None
    mask = plan.mask(key.shape[2], window)
    if original == "eager":
        floor = torch.finfo(query.dtype).min
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill(
            ~mask, floor
        )
    attend = _implementation(original, module)
    out: torch.Tensor = attend(module, query, key, value, mask, **kwargs)[0]
    return out, None


def _implementation(name: str, module: Any) -> Callable[..., Any]:
    if name == "eager":
        forward: Callable[..., Any] = sys.modules[type(module).__module__].eager_attention_forward
        return forward
    return AttentionInterface()[name]  # type: ignore[no-any-return]  # transformers is untyped


def run_planned(
    model: Any,
    ids: torch.Tensor,
    positions: torch.Tensor,
    *,
    cache: Any,
    plan: ForwardPlan,
    num_logits: int = 1,
) -> torch.Tensor:
    """Run rows of one prompt, (rows,) ids and positions, with the attention of a plan; return the
    logits of the last ones, (num_logits, vocabulary)."""
    out = model(
        input_ids=ids[None],
        position_ids=positions[None],
        past_key_values=cache,
        # Models pass on a mask of four dimensions unchanged; the plan has the actual one.
        attention_mask=torch.zeros(1, 1, 1, 1, device=ids.device),
        use_cache=True,
        # NOTE: an empty tensor asks for no rows; the int 0 would ask for all.
        logits_to_keep=num_logits or torch.empty(0, dtype=torch.long, device=ids.device),
        **{PLAN: plan},
    )
    if not plan.windows:
        raise UnsupportedModelError(
            f"{type(model).__name__} does not run the attention that reuse needs: it does not pass "
            "keyword arguments on to it, or set_attn_implementation was called and install was "
            "not called again"
        )
    logits: torch.Tensor = out.logits[0]
    return logits


REUSABLE_LAYERS = {"full_attention", "sliding_attention"}


class ModelAdapter(ReusableModel):
    """A model of transformers as one that can compute selected tokens. Raises
    `UnsupportedModelError`, with the reason, if its KV cannot be moved."""

    def __init__(self, model: Any) -> None:
        self.config = model.config.get_text_config(decoder=True)
        embedding = model.get_input_embeddings().weight
        super().__init__(
            model.eval(),
            model.config,
            num_layers=int(self.config.num_hidden_layers),
            vocabulary=int(self.config.vocab_size),
            dtype=embedding.dtype,
            device=embedding.device,
        )
        self._check_layers()
        self._rotary = self._find_rotary()
        kinds = getattr(self._rotary, "rope_type", "default")
        kinds = kinds.values() if isinstance(kinds, dict) else [kinds]
        self._is_dynamic = any("dynamic" in kind or kind == "longrope" for kind in kinds)
        self._lock = threading.RLock()
        self._static: tuple[Frequencies, ...] | None = None
        self.install()
        self.kv_shapes = self._read_shapes()
        self.measure()

    def install(self) -> None:
        """Install our attention, again whenever the model's own implementation has been set."""
        install_attention(self.model)

    def decode(
        self,
        cache: RequestCache,
        logits: torch.Tensor,
        *,
        position: int,
        max_tokens: int,
        stop_ids: Collection[int | None] = (),
    ) -> list[int]:
        """Continue a prompt greedily from its last logits, at `position`, up to a stop token, which
        is not part of the result. Appends to the cache."""
        tokens: list[int] = []
        while len(tokens) < max_tokens and (token := int(logits.argmax())) not in stop_ids:
            tokens.append(token)
            at = torch.tensor([[position + len(tokens) - 1]], device=self.device)
            ids = torch.tensor([[token]], device=self.device)
            if len(tokens) < max_tokens:
                with torch.no_grad():
                    out = self.model(ids, position_ids=at, past_key_values=cache, use_cache=True)
                logits = out.logits[0, -1]
        return tokens

    def frequencies(self, length: int) -> tuple[Frequencies, ...]:
        if self._static is not None:
            return self._static
        with self._lock:
            by_kind = {kind: self._frequencies(kind, length) for kind in set(self._layer_kinds())}
        frequencies = tuple(by_kind[kind] for kind in self._layer_kinds())
        if not self._is_dynamic:
            self._static = frequencies
        return frequencies

    def run(
        self, ids: torch.Tensor, positions: torch.Tensor, cache: RequestCache, plan: ForwardPlan
    ) -> torch.Tensor:
        # Dynamic kinds of RoPE keep their frequencies in the module: one prompt at a time.
        with self._lock if self._is_dynamic else nullcontext():
            return run_planned(self.model, ids, positions, cache=cache, plan=plan)[-1]

    def _frequencies(self, kind: str | None, length: int) -> Frequencies:
        probe = torch.zeros(1, 1, 1, device=self.device)
        # Position 0 first: it resets dynamic NTK to its original frequencies, so that the result
        # depends on `length` and not on the longest prompt so far.
        for last in (0, length - 1):
            at = torch.tensor([[last]], device=self.device)
            self._rotary(probe, at, **({} if kind is None else {"layer_type": kind}))
        inverse = getattr(self._rotary, "inv_freq" if kind is None else f"{kind}_inv_freq")
        return Frequencies(inverse.double().clone())

    def _layer_kinds(self) -> list[str | None]:
        types = getattr(self.config, "layer_types", None)
        if types is None or not hasattr(self._rotary, f"{types[0]}_inv_freq"):
            return [None] * self.num_layers
        return list(types)

    def _check_layers(self) -> None:
        types = getattr(self.config, "layer_types", None) or []
        unsupported = sorted(set(types) - REUSABLE_LAYERS)
        if unsupported:
            raise UnsupportedModelError(
                f"{self.name} has layers of type {', '.join(unsupported)} without KV per token; "
                f"chunk reuse needs {' or '.join(sorted(REUSABLE_LAYERS))}"
            )
        if getattr(self.config, "num_kv_shared_layers", 0):
            raise UnsupportedModelError(f"{self.name} shares KV between layers")

    def _find_rotary(self) -> nn.Module:
        found = [
            module
            for name, module in self.model.named_modules()
            if name.endswith("rotary_emb")
            and any("inv_freq" in n for n, _ in module.named_buffers())
        ]
        if len(found) != 1:
            raise UnsupportedModelError(
                f"{self.name} has {len(found)} rotary embeddings, expected 1; keys can be moved "
                "only in models with RoPE"
            )
        return found[0]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _read_shapes(self) -> list[tuple[int, int, int]]:
        """Return the shapes of the layers' KV, which no configuration has for every model."""
        cache, rows = DynamicCache(), torch.arange(PROBE_LENGTH, device=self.device)
        plan = ForwardPlan(rows)
        ids = torch.tensor(self._probe_tokens(), device=self.device)
        run_planned(self.model, ids, rows, cache=cache, plan=plan)
        if set(plan.windows) != set(range(self.num_layers)):
            raise UnsupportedModelError(
                f"only {len(plan.windows)} of {self.num_layers} layers of {self.name} run the "
                "attention that reuse needs"
            )
        types = getattr(self.config, "layer_types", None) or []
        for layer, kind in enumerate(types):
            if (kind == "sliding_attention") != (plan.windows[layer] is not None):
                raise UnsupportedModelError(
                    f"layer {layer} of {self.name} is of type {kind} and passes "
                    f"sliding_window={plan.windows[layer]} to its attention"
                )
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        return [(k.shape[1], k.shape[3], v.shape[3]) for k, v in layers]
