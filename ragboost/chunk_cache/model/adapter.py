"""Run selected tokens of a prompt through a Hugging Face decoder model, by its public API only.

Knows RoPE, attention windows and KV shapes of a model. Does not know chunks, policies or stores.
Properties that a class name does not tell reliably, such as the dimensions that RoPE pairs, are
measured on a few tokens when the adapter is created.
"""

import hashlib
import threading
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import DynamicCache

from ragboost.chunk_cache.model.fingerprint import weights_digest
from ragboost.chunk_cache.model.plan import PLAN, ForwardPlan, StopForwardError
from ragboost.chunk_cache.model.planned_attention import install_attention
from ragboost.chunk_cache.model.ranks import ONE_RANK, Ranks
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.model.rope import Frequencies, RotaryLayout, find_layouts
from ragboost.chunk_cache.model.row_hooks import install_row_hooks
from ragboost.errors import UnsupportedModelError

REUSABLE_LAYERS = {"full_attention", "sliding_attention"}
_PROBE_LENGTH = 8
_PROBE_SHIFT = 5


class ModelAdapter:
    """A causal LM that can compute selected tokens of a prompt.

    Attributes:
        model: the model in evaluation mode, with our attention installed (see `planned_attention`).
        num_layers, device, dtype: properties of the model.
        layouts: RoPE layout of each layer's keys.
        kv_shapes: KV heads, dimension of keys and dimension of values of each layer.
        can_drop_rows: a pass may drop rows between two layers (see `row_hooks`).
        can_resume: a pass may begin with the hidden states of an earlier one.
        ranks: this process.

    Raises:
        UnsupportedModelError: KV of this model cannot be moved; the message names the reason.
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
        self.layouts: tuple[RotaryLayout, ...] = self._measure_layouts()
        self.can_drop_rows = install_row_hooks(model, num_layers=self.num_layers)
        self.can_resume = self._measure_resuming()
        self.ranks: Ranks = ONE_RANK

    def install(self) -> None:
        """Install our attention. Must be called again whenever the model's attention implementation
        has been set, as the embedded engine does."""
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
        """Continue a prompt greedily from the logits of its last token, up to a stop token, which
        is not part of the result. Appends to the cache; `position` is that of the next token."""
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
        """Return the RoPE frequencies of each layer in a prompt of `length` tokens. Layers with
        equal frequencies share an object."""
        if self._static is not None:
            return self._static
        with self._lock:
            by_kind = {kind: self._frequencies(kind, length) for kind in set(self._layer_kinds())}
        frequencies = tuple(by_kind[kind] for kind in self._layer_kinds())
        if not self._is_dynamic:
            self._static = frequencies
        return frequencies

    def regime(self, length: int) -> str:
        """Return the identity of the RoPE frequencies in a prompt of `length` tokens."""
        digests = [frequencies.digest for frequencies in self.frequencies(length)]
        return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def forward(
        self, tokens: Sequence[int], cache: RequestCache, *, plan: ForwardPlan
    ) -> torch.Tensor | None:
        """Compute the rows of `plan`, write their KV to `cache`, and return the last row's logits.

        Args:
            tokens: token ids of the rows.
            cache: a cache with a slot for each token of the prompt.
            plan: slots of the rows, and their attention.

        Returns:
            Logits, (vocabulary,); None if an observer stopped the pass.
        """
        # Dynamic kinds of RoPE keep their frequencies in the module: one prompt at a time.
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
                for heads, key, value in self.kv_shapes
            ]
        )

    def fingerprint(self) -> str:
        """Return a digest of the configuration and of all weights, see `weights_digest`."""
        return weights_digest(
            self.model.config.to_json_string(use_diff=False), self.model.named_parameters()
        )

    def _call(
        self, tokens: Sequence[int], positions: torch.Tensor, *, cache: Any, plan: ForwardPlan
    ) -> torch.Tensor:
        out = self.model(
            input_ids=torch.tensor([list(tokens)], device=self.device),
            position_ids=positions[None],
            past_key_values=cache,
            # Models pass on a mask of four dimensions unchanged; the plan has the actual one.
            attention_mask=torch.zeros(1, 1, 1, 1, device=self.device),
            use_cache=True,
            logits_to_keep=1,
            **{PLAN: plan},
        )
        if not plan.windows:
            raise UnsupportedModelError(
                f"{self.name} does not run the attention that reuse needs: it does not pass "
                "keyword arguments on to it, or set_attn_implementation was called and install was "
                "not called again"
            )
        logits: torch.Tensor = out.logits[0, -1]
        return logits

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
    def _measure_layouts(self) -> tuple[RotaryLayout, ...]:
        """Determine the layouts by comparing keys at two positions. Attention depends on distances
        only, so in every layer the keys of a moved text must be its original keys, rotated."""
        near = torch.arange(_PROBE_LENGTH, device=self.device)
        before, after = self._probe_keys(near), self._probe_keys(near + _PROBE_SHIFT)
        return find_layouts(
            before,
            after,
            self.frequencies(_PROBE_LENGTH + _PROBE_SHIFT),
            shift=_PROBE_SHIFT,
            tolerance=self._tolerance,
            model=self.name,
        )

    def _measure_resuming(self) -> bool:
        """Compare a pass with one that begins at its second layer. They differ if the layers get
        more than hidden states from the earlier ones."""
        if self.num_layers < 2 or not self.can_drop_rows:
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
        self.kv_shapes = [(k.shape[1], k.shape[3], v.shape[3]) for k, v in layers]
        return [keys for keys, _ in layers]

    def _probe_tokens(self) -> list[int]:
        return [(17 * i + 3) % int(self.config.vocab_size) for i in range(_PROBE_LENGTH)]

    @property
    def _tolerance(self) -> float:
        return 1e-3 if self.dtype == torch.float32 else 0.05
