"""Build the engine from settings: model, tokenizer, prefix store, chunk reuse."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ragboost.cache_events import Event
from ragboost.chunk_cache.core.loading import check_device, load_causal_lm, load_tokenizer
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.core.self_test import self_test
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.config import EngineSettings
from ragboost.config.model_directory import check_model, find_model, model_name
from ragboost.engine import builtin
from ragboost.engine.runtime.engine import Engine
from ragboost.engine.runtime.filling import ChunkFiller, GraphRunner
from ragboost.engine.runtime.model_runner import ModelRunner, has_window
from ragboost.engine.runtime.prefix_store import PrefixStore
from ragboost.engine.runtime.scheduler import Scheduler
from ragboost.engine.tokenizer import ChatTokenizer
from ragboost.errors import ChunkCacheError, ConfigError, UnsupportedModelError
from ragboost.graph.conversation import GraphAttention, GraphPrompts
from ragboost.graph.depcache import DepCache

logger = logging.getLogger(__name__)

_OPTION = "engine.model"
_MAX_WAITING = 1024  # requests; further ones get a 503
_OF_OTHER_ENGINES = frozenset({"fill", "public_key", "step_tokens"})
TUNED = "ragboost_dependency"
"""Key in a model's configuration: the positions it was tuned with, `depth` or `preorder`."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    name: str  # in the API
    runner: ModelRunner  # computes its forwards
    tokenizer: ChatTokenizer  # with its chat template
    stop_ids: frozenset[int]  # tokens that end a generation
    graphs: GraphPrompts  # lays out prompts with graphs
    depcache: DepCache | None = None  # computes them; None: graphs are written out as text
    adapter: ModelAdapter | None = None  # computes reused chunks; None: chunks cannot be reused
    reuse_refusal: str | None = None  # why chunks cannot be reused; None: they can


def load_model(settings: EngineSettings, *, reuses_chunks: bool = True) -> LoadedModel:
    """Load `settings.model`, or build the built-in one. Raises `ConfigError`.

    Args:
        reuses_chunks: False: spare the self-test of chunk reuse, unless graphs need it.
    """
    if settings.is_builtin or settings.model is None:
        kind = "small" if settings.model is None else "tiny"
        model: Any = builtin.build_model(kind)
        tokenizer: Any = builtin.build_tokenizer()
        name = f"ragboost-{kind}"
    else:
        path = find_model(settings.model)
        model, tokenizer = _from_directory(path, settings)
        name = model_name(path)
    model = model.to(_device(settings))
    adapter: ModelAdapter | None = None
    refusal: str | None = "engine.chunks is not set"
    if reuses_chunks or settings.graph_attention != "auto" or _tuned_for(model) is not None:
        adapter, refusal = _adapter(model)
    runner = ModelRunner(model, max_length=settings.max_model_len)
    layout = runner.layout
    size = layout.bytes_per_token
    logger.info("%s on %s, %s, %d bytes of KV per token", name, layout.device, layout.dtype, size)
    chat = ChatTokenizer(tokenizer)
    attention, reason, depcache = _graph_attention(model, settings, adapter, refusal)
    return LoadedModel(
        name=settings.served_model_name or name,
        runner=runner,
        tokenizer=chat,
        stop_ids=_stop_ids(model, tokenizer),
        graphs=GraphPrompts(
            chat,
            depcache=depcache,
            attention=attention,
            reason=reason,
        ),
        depcache=depcache,
        adapter=adapter,
        reuse_refusal=refusal,
    )


def make_engine(
    loaded: LoadedModel,
    settings: EngineSettings,
    *,
    publish: Callable[[Sequence[Event]], None] | None = None,
) -> Engine:
    """Return an engine for a loaded model, whose thread is not started. Raises `ConfigError`."""
    if settings.capacity_tokens < settings.block_size:
        raise ConfigError(
            f"engine.capacity_tokens must be at least engine.block_size ({settings.block_size}), "
            f"got {settings.capacity_tokens}"
        )
    store = PrefixStore(
        loaded.runner.layout,
        capacity_tokens=settings.capacity_tokens,
        block_size=settings.block_size,
    )
    scheduler = Scheduler(
        loaded.runner,
        store,
        max_running=settings.max_running,
        max_running_tokens=settings.max_running_tokens,
        max_step_tokens=settings.max_step_tokens,
        chunk_filler=_chunk_filler(loaded.adapter, settings),
        graph_runner=GraphRunner(loaded.depcache) if loaded.depcache is not None else None,
    )
    return Engine(scheduler, max_waiting=_MAX_WAITING, publish=publish)


def _adapter(model: Any) -> tuple[ModelAdapter | None, str | None]:
    """Return the adapter for chunk reuse, or why there is none. The model has its own attention."""
    try:
        adapter = ModelAdapter(model)
        measured = self_test(adapter)
    except UnsupportedModelError as error:
        logger.warning("chunks cannot be reused with this model: %s", error)
        return None, str(error)
    logger.info("chunks can be reused: logits differ by %.2g at most", measured.resumed_error)
    return adapter, None


def _tuned_for(model: Any) -> str | None:
    return getattr(model.config.get_text_config(), TUNED, None)


def _graph_attention(
    model: Any, settings: EngineSettings, adapter: ModelAdapter | None, refusal: str | None
) -> tuple[GraphAttention, str | None, DepCache | None]:
    """Return how graphs are attended to, why not by dependency attention, and what computes it."""
    config = model.config.get_text_config()
    tuned, requested = _tuned_for(model), settings.graph_attention
    mode: GraphAttention = "dependency" if requested == "auto" else requested
    reason = None if mode == "dependency" else f"engine.graph_attention is {mode}"
    if requested == "auto" and tuned is None:
        mode = "self"
        reason = (
            "the model was not tuned for it; scripts/finetune_dependency.py does that, and "
            "engine.graph_attention = dependency does without"
        )
    elif mode != "self" and (refusal is not None or has_window(config)):
        mode, reason = "self", refusal or "the model has sliding windows"
    if adapter is None or mode == "self":
        return "self", reason, None
    # An untuned model expects written-out subgraphs at consecutive positions.
    is_preorder = mode == "subgraphs" or tuned == "preorder"
    depcache = DepCache(
        adapter,
        positions="preorder" if is_preorder else "depth",
    )
    return mode, reason, depcache


def chunk_settings(settings: EngineSettings) -> EngineChunkSettings:
    """Return the settings of chunk reuse. Raises `ConfigError`."""
    if foreign := _OF_OTHER_ENGINES & settings.chunks.keys():
        raise ConfigError(f"engine.chunks.{min(foreign)} is a setting of vLLM and SGLang only")
    try:
        return EngineChunkSettings.read(settings.chunks)
    except ConfigError as error:
        raise ConfigError(f"engine.chunks: {error}") from None


def _chunk_filler(adapter: ModelAdapter | None, settings: EngineSettings) -> ChunkFiller | None:
    chunks = chunk_settings(settings)
    if adapter is None:
        return None
    chunks.check_model(adapter)
    try:
        store = chunks.make_store()
        reuse = ChunkReuse(adapter, store, backend=chunks.backend)
    except (ChunkCacheError, OSError) as error:
        raise ConfigError(f"engine.chunks: {error}") from error
    return ChunkFiller(reuse)


def _from_directory(path: Path, settings: EngineSettings) -> tuple[Any, Any]:
    check_model(path, option=_OPTION)
    model = load_causal_lm(path, dtype=_dtype(settings), option=_OPTION)
    return model, load_tokenizer(path, option=_OPTION)


def _device(settings: EngineSettings) -> str:
    if settings.device != "auto":
        check_device(settings.device, option="engine.device")
        return settings.device
    return "cuda" if torch.cuda.is_available() and not settings.is_builtin else "cpu"


def _dtype(settings: EngineSettings) -> Any:
    if settings.dtype != "auto":
        return getattr(torch, settings.dtype)
    # fp32 is fastest and exact on a CPU without bf16 units; a GPU uses the stored dtype.
    return torch.float32 if _device(settings) == "cpu" else "auto"


def _stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    ids = model.generation_config.eos_token_id if model.generation_config is not None else None
    listed = ids if isinstance(ids, list) else [ids]
    return frozenset(i for i in [*listed, tokenizer.eos_token_id] if i is not None)
