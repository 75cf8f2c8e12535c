"""Make the engine's parts from settings: model, tokenizer, prefix store, thread."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ragboost.chunk_cache.eviction import make_eviction_policy
from ragboost.chunk_cache.kv.base import KVStore
from ragboost.chunk_cache.kv.store import ChunkStore
from ragboost.chunk_cache.kv.tiers.disk import DiskTier
from ragboost.chunk_cache.kv.tiers.store import TieredStore
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.precompute.catalog import ChunkCatalog
from ragboost.chunk_cache.reuse import ChunkReuse
from ragboost.chunk_cache.selection import POLICIES
from ragboost.chunk_cache.selftest import self_test
from ragboost.config import EngineSettings
from ragboost.engine import builtin
from ragboost.engine.runtime.chunk_scheduler import ChunkScheduler
from ragboost.engine.runtime.core import Engine
from ragboost.engine.runtime.graph import Graphs, make_graphs
from ragboost.engine.runtime.model_runner import ModelRunner
from ragboost.engine.runtime.prefix_cache import Event
from ragboost.engine.runtime.prefix_store import PrefixStore
from ragboost.engine.tokenizer import ChatTokenizer
from ragboost.errors import ChunkCacheError, ConfigError, UnsupportedModelError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to serve.

    Attributes:
        name: under which it is served.
        stop_ids: tokens that end a generation.
        adapter: through which chunks are reused; None: they cannot be.
        reuse_refusal: why; None where they can.
        graphs: prompts with graphs.
    """

    name: str
    runner: ModelRunner
    tokenizer: ChatTokenizer
    stop_ids: frozenset[int]
    graphs: Graphs
    adapter: ModelAdapter | None = None
    reuse_refusal: str | None = None


def load_model(settings: EngineSettings) -> LoadedModel:
    """Load `settings.model`, or build the built-in one.

    Raises:
        ConfigError: no model there, or one that cannot be served.
    """
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    if settings.model is None:
        model: Any = builtin.build_model(settings.builtin_size, seed=settings.seed)
        tokenizer: Any = builtin.build_tokenizer()
        name = f"ragboost-{settings.builtin_size}"
    else:
        model, tokenizer = _from_directory(settings)
        name = settings.model.resolve().name
    model = model.to(_device(settings))
    adapter, refusal = _adapter(model, settings)
    runner = ModelRunner(model, max_length=settings.max_model_len)
    if adapter is not None:
        adapter.install()  # the runner has set its own attention, which serves ordinary calls
    logger.info(
        "%s on %s, %s, %d bytes of KV per token",
        name,
        runner.device,
        runner.layout.dtype,
        runner.layout.bytes_per_token,
    )
    chat = ChatTokenizer(tokenizer)
    return LoadedModel(
        name=settings.served_model_name or name,
        runner=runner,
        tokenizer=chat,
        stop_ids=_stop_ids(model, tokenizer),
        graphs=make_graphs(model, chat, settings, adapter=adapter, reuse_refusal=refusal),
        adapter=adapter,
        reuse_refusal=refusal,
    )


def make_engine(
    loaded: LoadedModel,
    settings: EngineSettings,
    *,
    publish: Callable[[Sequence[Event]], None] | None = None,
) -> Engine:
    """Put a prefix store and a thread around a loaded model; the thread is not started.

    Raises:
        ConfigError: the capacity is less than one block.
    """
    if settings.capacity_tokens < settings.block_size:
        raise ConfigError(
            f"engine.capacity_tokens must be at least engine.block_size ({settings.block_size}), "
            f"got {settings.capacity_tokens}"
        )
    store = PrefixStore(
        loaded.runner.layout,
        capacity_tokens=settings.capacity_tokens,
        block_size=settings.block_size,
        policy=None if settings.eviction == "lru" else make_eviction_policy(settings.eviction),
    )
    if settings.reuse_policy not in POLICIES:
        raise ConfigError(
            f"engine.reuse_policy must be one of {', '.join(POLICIES)}, "
            f"got {settings.reuse_policy!r}"
        )
    return Engine(
        loaded.runner,
        store,
        max_running=settings.max_running,
        max_step_tokens=settings.max_step_tokens,
        max_waiting=settings.max_waiting,
        publish=publish,
        reuser=_reuser(loaded, settings),
        graphs=loaded.graphs,
    )


def _adapter(model: Any, settings: EngineSettings) -> tuple[ModelAdapter | None, str | None]:
    """What chunks are reused through, tested on the model while its attention is its own."""
    if settings.reuse == "off":
        return None, "engine.reuse is off"
    try:
        adapter = ModelAdapter(model)
        measured = self_test(adapter)
    except UnsupportedModelError as error:
        logger.warning("chunks cannot be reused with this model: %s", error)
        return None, str(error)
    logger.info("chunks can be reused: logits differ by %.2g at most", measured.resumed_error)
    return adapter, None


def _reuser(loaded: LoadedModel, settings: EngineSettings) -> ChunkScheduler | None:
    if loaded.adapter is None:
        return None
    store = _chunk_store(loaded.adapter.device, settings)
    directory = settings.reuse_directory
    recipes = None if directory is None else ChunkCatalog.read(directory)
    return ChunkScheduler(ChunkReuse(loaded.adapter, store, recipes=recipes))


def _chunk_store(device: torch.device, settings: EngineSettings) -> KVStore:
    if settings.reuse_directory is None:
        return ChunkStore(capacity_bytes=settings.reuse_capacity_bytes)
    try:
        disk = DiskTier(settings.reuse_directory, capacity_bytes=settings.reuse_disk_bytes)
    except ChunkCacheError as error:
        raise ConfigError(f"engine.reuse_directory: {error}") from error
    if device.type == "cpu":
        return TieredStore(host_bytes=settings.reuse_capacity_bytes, disk=disk)
    return TieredStore(
        accelerator_bytes=settings.reuse_capacity_bytes,
        host_bytes=settings.reuse_host_bytes,
        disk=disk,
        device=device,
    )


def _from_directory(settings: EngineSettings) -> tuple[Any, Any]:
    path = settings.model
    assert path is not None, "no model directory"
    if not (path / "config.json").is_file():
        raise ConfigError(f"engine.model: {path} is not a model directory (it has no config.json)")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path, local_files_only=True, dtype=_dtype(settings)
        )
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"engine.model: cannot load {path}: {error}") from error
    return model, tokenizer


def _device(settings: EngineSettings) -> str:
    if settings.device != "auto":
        return settings.device
    return "cuda" if torch.cuda.is_available() and settings.model is not None else "cpu"


def _dtype(settings: EngineSettings) -> Any:
    if settings.dtype != "auto":
        return getattr(torch, settings.dtype)
    # Without bf16 units a CPU is fastest, and exact, in fp32; a GPU takes what was stored.
    return torch.float32 if _device(settings) == "cpu" else "auto"


def _stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    ids = model.generation_config.eos_token_id if model.generation_config is not None else None
    listed = ids if isinstance(ids, list) else [ids]
    return frozenset(i for i in [*listed, tokenizer.eos_token_id] if i is not None)
