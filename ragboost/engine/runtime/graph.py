"""GraphRAG requests on the embedded engine: the KV of a sequence by dependency attention.

Where the model was not tuned for that, relation paths are written out and attention is ordinary.
Knows sequences, the tokenizer and `DepCache`. Does not know HTTP or how steps are planned.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from ragboost.chunk_cache.dependency.depkv import DepCache, DepKV
from ragboost.chunk_cache.dependency.layout import Layout
from ragboost.chunk_cache.kv.request_cache import RequestCache
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.prefill import Counts
from ragboost.config import EngineSettings
from ragboost.engine.http.graph_request import GraphRequest, PromptWriter, refusal, with_facts
from ragboost.engine.runtime.model_runner import has_window
from ragboost.engine.tokenizer import ChatTokenizer
from ragboost.errors import ChunkCacheError
from ragboost.graph.render import path_text

if TYPE_CHECKING:
    from ragboost.engine.runtime.request import EngineRequest

logger = logging.getLogger(__name__)

TUNED = "ragboost_dependency"
"""In a model's configuration: the positions that it was tuned with, `depth` or `preorder`."""

Attention = Literal["dependency", "subgraphs", "self"]


@dataclass(frozen=True, slots=True)
class GraphPrompt:
    """A prompt for dependency attention.

    Attributes:
        layout: its last token stands at its slot.
        recompute_ratio: see `GraphRequest`.
    """

    layout: Layout
    recompute_ratio: float


class Graphs:
    """Graph requests of one engine.

    Args:
        tokenizer: of the model.
        depcache: computes and keeps subgraphs; None: this model cannot.
        mode: how graphs are attended to, unless a request's own `attention` is `self`.
        reason: why it is not dependency attention; None: it is.
        recompute_ratio: for requests that do not say.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        *,
        depcache: DepCache | None,
        mode: Attention,
        reason: str | None,
        recompute_ratio: float = 0.0,
    ) -> None:
        self._writer = PromptWriter(tokenizer)
        self._depcache = depcache
        self._mode = mode
        self._reason = reason
        self._recompute_ratio = recompute_ratio

    def attention(self, request: GraphRequest) -> Attention:
        """Decide how a request's graph is attended to.

        Raises:
            RequestError: it insists on what this engine does not do.
        """
        if request.attention == "self":
            return "self"
        if request.attention not in ("auto", self._mode):
            reason = self._reason or "engine.graph_attention is dependency"
            raise refusal("attention", f"cannot be {request.attention} here: {reason}")
        return self._mode

    def written_out(
        self, request: GraphRequest, messages: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the messages with the paths as text, for ordinary attention."""
        return with_facts(messages, path_text(request.paths))

    def prompt(
        self,
        request: GraphRequest,
        messages: Sequence[Mapping[str, Any]],
        *,
        template_kwargs: Mapping[str, Any],
    ) -> GraphPrompt:
        """Lay out a conversation; see `PromptWriter.prompt`."""
        assert self._depcache is not None, "dependency attention was refused"
        write = self._writer.subgraphs if self._mode == "subgraphs" else self._writer.prompt
        prompt = write(request.paths, messages, template_kwargs=template_kwargs)
        ratio = request.recompute_ratio
        return GraphPrompt(
            self._depcache.layout(prompt).with_last_in_place(),
            self._recompute_ratio if ratio is None else ratio,
        )

    def look_ahead(self, waiting: Callable[[], Iterable[tuple[GraphPrompt, str | None]]]) -> None:
        """Say how to ask for the prompts and salts that come next, for eviction."""
        if self._depcache is not None:
            self._depcache.look_ahead(
                lambda: [(prompt.layout, salt or "") for prompt, salt in waiting()]
            )

    def compute(self, sequence: "EngineRequest") -> int:
        """Fill in the KV of a sequence's prompt, in the engine's thread; its last token is left to
        the next step.

        Returns:
            How many tokens were computed.
        """
        prompt, kv = sequence.graph, sequence.kv
        assert prompt is not None, "a sequence without a graph"
        assert kv is not None, "a sequence without a KV cache"
        count = len(prompt.layout)
        kv.reserve(count)
        own = [(keys[None, :, :count], values[None, :, :count]) for keys, values in kv.layers]
        for keys, values in own:  # what is masked out is multiplied by 0, and must be finite
            keys.zero_()
            values.zero_()
        found = self._filled(prompt, RequestCache(own), salt=sequence.salt or "")
        # Nothing of it is what a plain prefill gives, or stands where that would put it.
        counts = Counts(
            num_exact=0,
            num_approximate=found.num_reused,
            num_recomputed=0,
            num_computed=len(found.computed),
            num_publishable=0,
        )
        sequence.compute_rows(torch.tensor([count - 1], device=own[0][0].device), counts)
        return len(found.computed) + found.num_recomputed

    def _filled(self, prompt: GraphPrompt, cache: RequestCache, *, salt: str) -> DepKV:
        assert self._depcache is not None, "dependency attention was refused"
        ratio = prompt.recompute_ratio
        try:
            return self._depcache.compute_depkv(
                prompt.layout, recompute_ratio=ratio, salt=salt, into=cache
            )
        except ChunkCacheError as error:
            logger.warning("a graph's tokens are not computed again: %s", error)
            return self._depcache.compute_depkv(prompt.layout, salt=salt, into=cache)


def make_graphs(
    model: Any,
    tokenizer: ChatTokenizer,
    settings: EngineSettings,
    *,
    adapter: ModelAdapter | None,
    reuse_refusal: str | None,
) -> Graphs:
    """Return what handles the graph requests of a model.

    Args:
        model: its configuration says whether it was tuned, see `TUNED`.
        tokenizer: of the model.
        settings: of the engine.
        adapter: None: it has none.
        reuse_refusal: why.
    """
    config = model.config.get_text_config()
    tuned = getattr(config, TUNED, None)
    wanted = settings.graph_attention
    mode: Attention = "dependency" if wanted == "auto" else wanted
    reason = None if mode == "dependency" else f"engine.graph_attention is {mode}"
    if mode != "self" and (reuse_refusal is not None or has_window(config)):
        mode, reason = "self", reuse_refusal or "the model has sliding windows"
    elif wanted == "auto" and tuned is None:
        mode = "self"
        reason = (
            "the model was not tuned for it; scripts/finetune_dependency.py does that, and "
            "engine.graph_attention = dependency does without"
        )
    depcache = None
    if adapter is not None and mode != "self":
        # Written-out subgraphs keep the places that an untuned model expects them at.
        is_preorder = mode == "subgraphs" or tuned == "preorder"
        depcache = DepCache(
            adapter,
            capacity_tokens=settings.graph_capacity_tokens,
            positions="preorder" if is_preorder else "depth",
        )
    return Graphs(
        tokenizer,
        depcache=depcache,
        mode=mode,
        reason=reason,
        recompute_ratio=settings.graph_recompute_ratio,
    )
