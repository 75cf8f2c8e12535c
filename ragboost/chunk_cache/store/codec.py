"""Encode a layer's keys and values for storage: unchanged, or in 8 bits with a scale per token and
head."""

from collections.abc import Mapping
from types import MappingProxyType

import torch

from ragboost.errors import ChunkCacheError

KV = tuple[torch.Tensor, torch.Tensor]

CODECS: Mapping[str, torch.dtype | None] = MappingProxyType(
    {"plain": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
)
"""Stored dtype of each codec; None: the dtype of the KV."""


def check_codec(name: str) -> str:
    if name not in CODECS:
        raise ChunkCacheError(f"codec must be one of {', '.join(CODECS)}, got {name!r}")
    return name


def pack(kv: KV, codec: str) -> dict[str, torch.Tensor]:
    """Return the tensors to store by name, on the CPU and contiguous."""
    dtype = CODECS[codec]
    packed = {}
    for name, tensor in zip("kv", kv, strict=True):
        values = tensor.detach().cpu()
        if dtype is not None:
            values, packed[f"{name}_scale"] = _quantise(values, dtype)
        values = values.contiguous()
        # safetensors refuses tensors that share memory, as views of one buffer do.
        is_view = values.untyped_storage().nbytes() != values.nbytes
        packed[name] = values.clone() if is_view else values
    return packed


def unpack(packed: Mapping[str, torch.Tensor], *, dtype: torch.dtype) -> KV:
    """Return the keys and values that were encoded by `pack`."""
    keys, values = (_restore(packed, name, dtype) for name in "kv")
    return keys, values


def _quantise(values: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    most = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    exact = values.float()
    scale = (exact.abs().amax(-1, keepdim=True) / most).clamp_min(1e-12)  # (1, heads, tokens, 1)
    scaled = exact / scale
    if dtype == torch.int8:
        scaled = scaled.round()
    return scaled.to(dtype), scale


def _restore(packed: Mapping[str, torch.Tensor], name: str, dtype: torch.dtype) -> torch.Tensor:
    scale = packed.get(f"{name}_scale")
    if scale is None:
        return packed[name]
    return (packed[name].float() * scale).to(dtype)
