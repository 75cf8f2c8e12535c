"""The file format of a chunk's KV: safetensors with checksums of the header and of each layer."""

import json
import math
import struct
import zlib
from dataclasses import asdict
from types import MappingProxyType
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import from_json

from ragboost.chunk_cache.store.chunk import KV, ChunkKV
from ragboost.chunk_cache.store.influence import STRICT, Count, Influence
from ragboost.chunk_cache.store.keys import LAYOUT_VERSION
from ragboost.errors import ChunkCacheError

FORMAT = "ragboost-chunk-kv"
_VERSION = f"1.{LAYOUT_VERSION}"
_MAX_HEADER_BYTES = 16 << 20
_MAX_LENGTH = 1 << 31
_SAFETENSORS_DTYPES = MappingProxyType(
    {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
)


def encode(key: str, chunk: ChunkKV) -> bytes:
    """Return the content of a chunk file, which no other key can read."""
    tensors: dict[str, torch.Tensor] = {}
    checksums = []
    for number, layer in enumerate(chunk.layers):
        checksum = 0
        for part, own in zip("kv", layer, strict=True):
            tensor = own.detach().cpu().contiguous()
            tensors[f"{number:04d}.{part}"] = tensor
            checksum = zlib.crc32(_bytes_of(tensor), checksum)
        checksums.append(checksum)
    fields = {
        "key": key,
        "dtype": str(chunk.layers[0][0].dtype).removeprefix("torch."),
        "tokens": chunk.tokens,
        "base": chunk.base,
        "regime": chunk.regime,
        "length": chunk.length,
        "influence": None if chunk.influence is None else asdict(chunk.influence),
        "exact_after": chunk.exact_after,
        "compute_s": chunk.compute_s,
        "layers": checksums,
    }
    fields["tensors"] = {
        name: [list(tensor.shape), str(tensor.dtype)] for name, tensor in tensors.items()
    }
    text = json.dumps(fields, sort_keys=True)
    metadata = {
        "format": FORMAT,
        "version": _VERSION,
        "fields": text,
        "checksum": str(zlib.crc32(text.encode())),
    }
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        kind = _SAFETENSORS_DTYPES[tensor.dtype]
        header[name] = {"dtype": kind, "shape": [*tensor.shape], "data_offsets": [begin, end]}
    start = json.dumps(header, separators=(",", ":")).encode()
    start += b" " * (-len(start) % 8)
    # A single copy: safetensors' own `save` makes two, beyond what writing may take.
    return b"".join([struct.pack("<Q", len(start)), start, *map(_bytes_of, tensors.values())])


class _ChunkFields(BaseModel):
    """The fields of `ChunkKV`, and the tensors by name with shape and dtype, under one checksum."""

    model_config = STRICT

    key: str
    dtype: Literal["float64", "float32", "float16", "bfloat16"]
    tokens: tuple[Count, ...] = Field(min_length=1)
    base: Count
    regime: str
    length: Count
    influence: Influence | None
    exact_after: str | None
    compute_s: Annotated[float, Field(ge=0)] | None
    layers: tuple[Count, ...] = Field(min_length=1)
    tensors: dict[str, tuple[tuple[Count, ...], str]]

    def problem(self) -> str | None:
        count = len(self.tokens)
        if self.base + count > self.length or self.length > _MAX_LENGTH:
            return f"{count} tokens from {self.base} on in a prompt of {self.length}"
        if (influence := self.influence) is not None:
            is_whole = sorted(influence.order) == list(range(count))
            if len(influence.context) != len(influence.inter) or not is_whole:
                return "an influence of other chunks or tokens"
        found = {
            name: (list(shape), dtype.removeprefix("torch."))
            for name, (shape, dtype) in self.tensors.items()
        }
        for number in range(len(self.layers)):
            for part in "kv":
                shape, dtype = found.pop(f"{number:04d}.{part}", ([], ""))
                if len(shape) != 4 or [shape[0], shape[2]] != [1, count] or 0 in shape:
                    return f"no tensor of {count} tokens for layer {number}"
                if dtype != self.dtype:
                    return f"{dtype} in layer {number}"
        return f"other tensors: {', '.join(sorted(found))[:80]}" if found else None


def decode(content: bytearray, key: str) -> ChunkKV:
    """Return the KV of a chunk file, whose tensors share its memory. Raises `ChunkCacheError` with
    the reason if it is no valid file of this key."""
    try:
        (length,) = struct.unpack_from("<Q", content)
        if not 0 < length <= min(_MAX_HEADER_BYTES, len(content) - 8):
            raise _refusal(key, f"its header has an invalid size of {length} bytes")
        header = from_json(bytes(content[8 : 8 + length]))  # of bounded depth
        metadata = header["__metadata__"]
        if (metadata["format"], metadata["version"]) != (FORMAT, _VERSION):
            raise _refusal(key, f"it has format {metadata['format']} {metadata['version']}")
        if zlib.crc32(metadata["fields"].encode()) != int(metadata["checksum"]):
            raise _refusal(key, "its header has a wrong checksum")
        fields = _ChunkFields.model_validate_json(metadata["fields"])
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise _refusal(key, f"its header cannot be read: {_first_line(error)}") from error
    if fields.key != key:
        raise _refusal(key, f"it holds chunk {fields.key}, not {key}")
    if (problem := fields.problem()) is not None:
        raise _refusal(key, f"it describes {problem}")
    return ChunkKV(
        tokens=fields.tokens,
        base=fields.base,
        layers=_layers(memoryview(content)[8 + length :], fields),
        regime=fields.regime,
        length=fields.length,
        influence=fields.influence,
        exact_after=fields.exact_after,
        compute_s=fields.compute_s,
    )


def _layers(data: memoryview, fields: _ChunkFields) -> tuple[KV, ...]:
    """Return the tensors, one after the other by their checked shapes: the offsets in the header,
    which no checksum covers, are for other readers."""
    layers, at = list[KV](), 0
    for number, expected in enumerate(fields.layers):
        parts, checksum = [], 0
        for name in (f"{number:04d}.k", f"{number:04d}.v"):
            shape, dtype = fields.tensors[name]
            size = math.prod(shape) * _dtype(dtype).itemsize
            buffer, at = data[at : at + size], at + size
            if len(buffer) != size:
                raise _refusal(fields.key, "it is truncated")
            checksum = zlib.crc32(buffer, checksum)
            parts.append(torch.frombuffer(buffer, dtype=_dtype(dtype)).reshape(shape))
        if checksum != expected:
            raise _refusal(fields.key, f"layer {number} has a wrong checksum")
        layers.append((parts[0], parts[1]))
    if at != len(data):
        raise _refusal(fields.key, f"it has {len(data)} bytes of tensors instead of {at}")
    return tuple(layers)


def _refusal(key: str, reason: str) -> ChunkCacheError:
    return ChunkCacheError(f"the stored chunk {key} cannot be used: {reason}")


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return dtype


def _first_line(error: Exception) -> str:
    """Return what an error is and where, without the contents of a file."""
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, found['loc']))[:80]}: {found['msg']}"
    return repr(error)[:120]


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.flatten().view(torch.uint8).numpy())
