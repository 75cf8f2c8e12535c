"""The flags of SGLang's server that switch chunk reuse on, and where it says whether it is. SGLang
has no flag for the settings of a radix cache backend; they travel in the one for storage backends,
which it reads only with its hierarchical cache. Does not import SGLang."""

import atexit
import json
import logging
from collections.abc import Mapping
from typing import Any

from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.http.reports import remove_status, write_status
from ragboost.errors import ConfigError
from ragboost.util.jsonl import json_value

logger = logging.getLogger(__name__)

BACKEND = "ragboost"


def sglang_flags(settings: Mapping[str, Any]) -> list[str]:
    flags = ["--radix-cache-backend", BACKEND]
    if settings:
        flags += ["--hicache-storage-backend-extra-config", json.dumps(dict(settings))]
    return flags


def instance(port: int) -> str:
    return f"sglang-{port}"


def publish(context: Any, refusal: str | None) -> None:
    if refusal is not None:
        logger.warning("chunk reuse stays off: %s", refusal)
    if context.tp_rank == 0:
        name = instance(context.server_args.port)
        write_status(name, refusal)
        atexit.register(remove_status, name)


def read_settings(server_args: Any) -> EngineChunkSettings:
    text = server_args.hicache_storage_backend_extra_config or "{}"
    fields = json_value(text)
    if not isinstance(fields, dict):
        raise ConfigError(
            f"--hicache-storage-backend-extra-config must be a JSON object, got {text!r}"
        )
    return EngineChunkSettings.read(
        fields, device=server_args.device, num_workers=server_args.tp_size
    )
