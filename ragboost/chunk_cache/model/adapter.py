"""Run selected tokens of a prompt through a Hugging Face decoder model, by its public API only.

Knows how a model rotates, windows and caches. Does not know chunks, policies or stores. What a
class name does not tell reliably (which dimensions RoPE pairs, which layers have none) is measured
on a few tokens when the adapter is made.
"""

import hashlib
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import DynamicCache

from ragboost.chunk_cache.kv.request_cache import RequestCache
from ragboost.chunk_cache.model.hook import PLAN, ForwardPlan, StopForwardError, install
from ragboost.chunk_cache.model.resume import install_resuming
from ragboost.chunk_cache.model.rope import Frequencies, Layout, angles, rotate
from ragboost.errors import UnsupportedModelError

REUSABLE_LAYERS = {"full_attention", "sliding_attention"}
LAYOUTS: tuple[Layout, ...] = ("half", "interleaved", "none")
_PROBE_LENGTH = 8
_PROBE_SHIFT = 5


class ModelAdapter:
    """A causal LM whose tokens can be computed selectively.

    Attributes:
        model: the model, in evaluation mode, with our attention installed (see `hook`).
        num_layers, device, dtype: of the model.
        layouts: how each layer's keys rotate.
        can_resume: whether a pass may begin with the hidden states of an earlier one.

    Raises:
        UnsupportedModelError: KV of this model cannot be moved; the message says why.
    """

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        self.config = model.config.get_text_config(decoder=True)
        self.name = type(model).__name__
        self.num_layers = int(self.config.num_hidden_layers)
        embedding = model.get_input_embeddings().weight
        self.device: torch.device = embedding.device
        self.dtype: torch.dtype = embedding.dtype
        self._check_layers()
        self._rotary = self._find_rotary()
        kinds = getattr(self._rotary, "rope_type", "default")
        kinds = kinds.values() if isinstance(kinds, dict) else [kinds]
        self._is_dynamic = any("dynamic" in kind or kind == "longrope" for kind in kinds)
        self._lock = threading.RLock()
        self._static: tuple[Frequencies, ...] | None = None
        self.install()
        self.layouts: tuple[Layout, ...] = self._measure_layouts()
        self.can_resume = self._measure_resuming()

    def install(self) -> None:
        """Install our attention; call it again after anything has set the model's attention
        implementation, as the embedded engine does."""
        install(self.model)

    def frequencies(self, length: int) -> tuple[Frequencies, ...]:
        """Return each layer's rotation speeds in a prompt of this many tokens. Layers that turn
        alike share an object."""
        if self._static is not None:
            return self._static
        with self._lock:
            known = {kind: self._speeds(kind, length) for kind in set(self._layer_kinds())}
        speeds = tuple(known[kind] for kind in self._layer_kinds())
        if not self._is_dynamic:
            self._static = speeds
        return speeds

    def regime(self, length: int) -> str:
        """Return the identity of the rotation speeds in a prompt of this many tokens."""
        digests = [frequencies.digest for frequencies in self.frequencies(length)]
        return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def forward(
        self, tokens: Sequence[int], cache: RequestCache, *, plan: ForwardPlan
    ) -> torch.Tensor | None:
        """Compute the rows of `plan`, write their KV into `cache`, return the last row's logits.

        Args:
            tokens: the ids of the rows.
            cache: holds a slot for every token of the prompt, and says which positions they have.
            plan: slots of the rows, and how their attention is done.

        Returns:
            (vocabulary,) logits, or None where an observer stopped the pass.
        """
        # Dynamic kinds of RoPE keep their speeds in the module: one prompt at a time.
        alone = self._lock if self._is_dynamic else nullcontext()
        with alone, cache.writing(plan.positions):
            try:
                rows, positions = plan.positions, cache.positions
                at = rows if positions is None else positions[rows]
                return self._call(tokens, at, cache=cache, plan=plan)
            except StopForwardError:
                return None

    def empty_cache(self, length: int) -> RequestCache:
        """Return a cache with `length` zeroed slots."""
        like = {"dtype": self.dtype, "device": self.device}
        return RequestCache(
            [
                (
                    torch.zeros(1, heads, length, key, **like),
                    torch.zeros(1, heads, length, value, **like),
                )
                for heads, key, value in self._kv_shapes
            ]
        )

    def fingerprint(self) -> str:
        """Return an identity of the weights, from the configuration and a sample of each tensor."""
        digest = hashlib.sha256(self.model.config.to_json_string(use_diff=False).encode())
        for name, parameter in self.model.named_parameters():
            flat = parameter.detach().flatten()
            sample = flat[:: max(1, flat.numel() // 64)].float().cpu()
            digest.update(name.encode() + sample.numpy().tobytes())
        return digest.hexdigest()[:32]

    def _call(
        self, tokens: Sequence[int], positions: torch.Tensor, *, cache: Any, plan: ForwardPlan
    ) -> torch.Tensor:
        out = self.model(
            input_ids=torch.tensor([list(tokens)], device=self.device),
            position_ids=positions[None],
            past_key_values=cache,
            # A mask of four dimensions is handed on as it is; the real one is made from the plan.
            attention_mask=torch.zeros(1, 1, 1, 1, device=self.device),
            use_cache=True,
            logits_to_keep=1,
            **{PLAN: plan},
        )
        if not plan.windows:
            raise UnsupportedModelError(
                f"{self.name} does not run the attention that reuse needs: it passes no "
                "keywords on to it, or set_attn_implementation was called and install was not "
                "called again"
            )
        logits: torch.Tensor = out.logits[0, -1]
        return logits

    def _speeds(self, kind: str | None, length: int) -> Frequencies:
        probe = torch.zeros(1, 1, 1, device=self.device)
        # Position 0 first: dynamic NTK falls back to its original speeds, so that the result
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
        strange = sorted(set(types) - REUSABLE_LAYERS)
        if strange:
            raise UnsupportedModelError(
                f"{self.name} has layers of type {', '.join(strange)}, whose state is no KV per "
                f"token; chunk reuse needs {' or '.join(sorted(REUSABLE_LAYERS))}"
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
                f"{self.name} has {len(found)} rotary embeddings where one was expected; keys can "
                "only be moved where positions are rotations"
            )
        return found[0]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _measure_layouts(self) -> tuple[Layout, ...]:
        """Compare keys at two places. Attention depends on distances alone, so in every layer the
        keys of a moved text must be its first keys, rotated."""
        near = torch.arange(_PROBE_LENGTH, device=self.device)
        far = near + _PROBE_SHIFT
        before, after = self._probe_keys(near), self._probe_keys(far)
        layouts = []
        for layer, speeds in enumerate(self.frequencies(_PROBE_LENGTH + _PROBE_SHIFT)):
            turn = angles(speeds, speeds, stored=near, wanted=far)
            cos, sin = turn.cos().float(), turn.sin().float()
            if 2 * cos.shape[-1] > before[layer].shape[-1]:
                raise UnsupportedModelError(
                    f"{self.name} rotates {2 * cos.shape[-1]} dimensions of keys that have "
                    f"{before[layer].shape[-1]}"
                )
            errors: dict[Layout, float] = {}
            for layout in LAYOUTS:
                moved = rotate(before[layer], cos, sin, layout=layout).float()
                wanted = after[layer].float()
                errors[layout] = float((moved - wanted).norm() / wanted.norm())
            best = min(LAYOUTS, key=lambda layout: errors[layout])
            if not errors[best] < self._tolerance:
                raise UnsupportedModelError(
                    f"layer {layer} of {self.name}: moved keys differ from computed ones by "
                    f"{errors[best]:.2g} of their size; its position encoding is not known"
                )
            layouts.append(best)
        return tuple(layouts)

    def _measure_resuming(self) -> bool:
        """Compare a pass with one that begins at its second layer: a layer may be given more than
        hidden states."""
        if self.num_layers < 2 or not install_resuming(self.model, num_layers=self.num_layers):
            return False
        rows = torch.arange(_PROBE_LENGTH, device=self.device)
        cache, tokens = self.empty_cache(_PROBE_LENGTH), self._probe_tokens()
        whole = ForwardPlan(rows, keep=1)
        want = self.forward(tokens, cache, plan=whole)
        if whole.hidden is None:
            return False
        got = self.forward(tokens, cache, plan=ForwardPlan(rows, begin=whole.hidden))
        assert got is not None, "no observer stops this pass"
        assert want is not None, "no observer stops this pass"
        limit = self._tolerance * float(want.float().abs().max())
        return bool((got.float() - want.float()).abs().max() <= limit)

    def _probe_keys(self, positions: torch.Tensor) -> list[torch.Tensor]:
        cache = DynamicCache()
        plan = ForwardPlan(torch.arange(_PROBE_LENGTH, device=self.device))
        self._call(self._probe_tokens(), positions, cache=cache, plan=plan)
        if set(plan.windows) != set(range(self.num_layers)):
            raise UnsupportedModelError(
                f"{self.name} has {self.num_layers} layers, {len(plan.windows)} of which run the "
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
        self._kv_shapes = [(k.shape[1], k.shape[3], v.shape[3]) for k, v in layers]
        return [keys for keys, _ in layers]

    def _probe_tokens(self) -> list[int]:
        return [(17 * i + 3) % int(self.config.vocab_size) for i in range(_PROBE_LENGTH)]

    @property
    def _tolerance(self) -> float:
        return 1e-3 if self.dtype == torch.float32 else 0.05
