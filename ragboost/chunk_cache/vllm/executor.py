"""vLLM's executor with chunk reuse. The scheduler's side needs the only worker in its own process,
which vLLM does by default on GPUs only. Several workers report to it, see `catalogue`."""

from typing import Any

from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor


class ChunkExecutor(UniProcExecutor):  # type: ignore[misc]  # vLLM is untyped here
    """The worker in the engine's process, if there is one; else vLLM's executor for several."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        if vllm_config.parallel_config.world_size > 1:
            return MultiprocExecutor(vllm_config, *args, **kwargs)
        return super().__new__(cls)
