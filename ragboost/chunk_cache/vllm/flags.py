"""The flags of `vllm serve` that switch chunk reuse on. Imports neither vLLM nor torch."""

import json
from collections.abc import Mapping
from typing import Any

CONNECTOR = "ChunkConnector"
CONNECTOR_MODULE = "ragboost.chunk_cache.vllm.connector"
WORKER = "ragboost.chunk_cache.vllm.worker.ChunkWorker"
EXECUTOR = "ragboost.chunk_cache.vllm.executor.ChunkExecutor"
FRONT = "ragboost.chunk_cache.vllm.front.Front"


def vllm_flags(settings: Mapping[str, Any]) -> list[str]:
    transfer = {
        "kv_connector": CONNECTOR,
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
    }
    if settings:
        transfer["kv_connector_extra_config"] = dict(settings)  # type: ignore[assignment]
    return [
        "--worker-cls",
        WORKER,
        "--middleware",
        FRONT,
        "--distributed-executor-backend",
        EXECUTOR,
        "--kv-transfer-config",
        json.dumps(transfer),
    ]
