"""The SGLang plug-in (`sglang.srt.plugins`): the radix cache backend and its HTTP front, for
`--radix-cache-backend ragboost`. Loaded by SGLang in each of its processes."""

import logging
from multiprocessing import parent_process
from typing import Any

from ragboost.chunk_cache.http.reports import start_failure
from ragboost.chunk_cache.sglang.flags import BACKEND, publish

logger = logging.getLogger(__name__)


def register() -> None:
    try:
        from sglang.srt.mem_cache.registry import register_radix_cache_backend
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    except ImportError as error:
        logger.warning("RAGBoost's chunk reuse does not support this SGLang version: %s", error)
        return
    try:
        register_radix_cache_backend(BACKEND, _make_cache)
    except ValueError:  # loaded twice in this process
        logger.debug("the radix cache backend %s is already registered", BACKEND)
        return
    if parent_process() is None:  # the one that serves HTTP
        HookRegistry.register(
            "sglang.srt.server_args.prepare_server_args", _add_front, HookType.AFTER
        )


def _make_cache(context: Any) -> Any:
    try:
        from ragboost.chunk_cache.sglang.cache import make_cache
    except Exception as error:  # SGLang's internals are not where they were
        from sglang.srt.mem_cache.registry import default_radix_cache_factory

        publish(context, start_failure(error))
        return default_radix_cache_factory(context)
    return make_cache(context)


def _add_front(server_args: Any, *_: Any, **__: Any) -> None:
    if server_args.radix_cache_backend == BACKEND:
        from sglang.srt.entrypoints.http_server import app

        app.add_middleware(_make_front)


def _make_front(app: Any) -> Any:
    """Return the middleware when the server starts, once SGLang has set the metrics'
    environment."""
    from ragboost.chunk_cache.sglang.front import SGLangFront

    return SGLangFront(app)
