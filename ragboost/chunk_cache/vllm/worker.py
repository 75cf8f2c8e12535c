"""vLLM's worker with chunk reuse, named in `--worker-cls`.

It gives the connector the model runner, which the connector's own interface does not.
"""

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.platforms import current_platform

from ragboost.chunk_cache.vllm.connector import ChunkConnector

if TYPE_CHECKING or not current_platform.is_cpu():
    from vllm.v1.worker.gpu_worker import Worker as _PlatformWorker
else:
    from vllm.v1.worker.cpu_worker import CPUWorker as _PlatformWorker


class ChunkWorker(_PlatformWorker):  # type: ignore[misc]  # vLLM is untyped here
    """The platform's worker, which starts chunk reuse once the cache is allocated."""

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        super().initialize_from_config(kv_cache_config)
        connector = _connector()
        if connector is not None:
            connector.start(self.model_runner)

    def reload_weights(self, *args: Any, **kwargs: Any) -> None:
        super().reload_weights(*args, **kwargs)
        _check_weights()

    def finish_weight_update(self) -> None:
        super().finish_weight_update()
        _check_weights()


def _connector() -> ChunkConnector | None:
    connector = get_kv_transfer_group() if has_kv_transfer_group() else None
    return connector if isinstance(connector, ChunkConnector) else None


def _check_weights() -> None:
    connector = _connector()
    if connector is not None and connector.filler is not None:
        connector.filler.check_weights()
