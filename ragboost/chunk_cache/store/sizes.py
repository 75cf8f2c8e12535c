"""How many bytes the KV of a corpus takes, by a model's configuration."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from ragboost.errors import ConfigError

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_KINDS = ("full_attention", "sliding_attention")  # whose KV is reused
_HEADER_BYTES, _HEADER_BYTES_PER_TOKEN, _HEADER_BYTES_PER_LAYER = 1024, 8, 300
"""Of a chunk's file without measurements, at most: fields, token ids, and each layer's tensors."""


class CorpusSizes(NamedTuple):
    layers: int
    kv_heads: int  # of one rank
    head_dim: int
    value_bytes: int  # of one number
    bytes_per_token: int
    memory_bytes: int
    file_bytes: int  # at most, without measurements
    host_bytes: int  # setting that holds all in memory
    host_bytes_tiered: int  # the same beside one more place, for which an eighth is kept free


def corpus_sizes(
    model: Path, *, documents: int, tokens: int, dtype: str, ranks: int = 1
) -> CorpusSizes:
    """Return what documents of so many tokens take on one of `ranks`. Raises `ConfigError`."""
    if dtype not in _DTYPE_BYTES:
        raise ConfigError(f"dtype must be one of {', '.join(_DTYPE_BYTES)}, got {dtype!r}")
    config = _read(model)
    kinds = config.get("layer_types")
    others = {str(kind) for kind in kinds if kind not in _KINDS} if isinstance(kinds, list) else ()
    if config.get("kv_lora_rank") or others:
        kind = ", ".join(sorted(others)) or "latent attention"
        raise ConfigError(f"{model}: KV of {kind} is not stored, since chunks cannot reuse it")
    layers, heads = _count(config, "num_hidden_layers"), _count(config, "num_attention_heads")
    own = config.get("num_key_value_heads")
    kv_heads = max(1, (heads if own is None else _count(config, "num_key_value_heads")) // ranks)
    head_dim = config.get("head_dim")
    if head_dim is None:
        head_dim = _count(config, "hidden_size") // heads
    elif type(head_dim) is not int or head_dim < 1:
        raise ConfigError(f"{model}: `head_dim` must be a positive number, got {head_dim!r}")
    per_token = layers * 2 * kv_heads * head_dim * _DTYPE_BYTES[dtype]
    header = _HEADER_BYTES + tokens * _HEADER_BYTES_PER_TOKEN + layers * _HEADER_BYTES_PER_LAYER
    memory = documents * tokens * per_token
    files = memory + documents * header
    tiered = min(-(-memory * 8 // 7), memory + (1 << 28))
    return CorpusSizes(
        layers,
        kv_heads,
        head_dim,
        _DTYPE_BYTES[dtype],
        per_token,
        memory,
        files,
        max(1, memory),
        max(1, tiered),
    )


def _read(model: Path) -> dict[str, Any]:
    path = model / "config.json" if model.is_dir() else model
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no model configuration: {error}") from error
    inner = config.get("text_config") if isinstance(config, dict) else None
    found = inner if isinstance(inner, dict) else config
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is no model configuration")
    return found


def _count(config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise ConfigError(f"the model's configuration must have a positive `{name}`")
    return value
