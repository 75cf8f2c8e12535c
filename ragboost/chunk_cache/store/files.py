"""The file format of one chunk's KV: safetensors, with checksums of the header and of each layer,
which is checked in memory: a memory map could change after the check."""

import json
import math
import os
import stat
import struct
import zlib
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, BinaryIO, Literal

import torch
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import from_json

from ragboost.chunk_cache.store.chunk import KV, ChunkKV
from ragboost.chunk_cache.store.influence import STRICT, Count, Influence
from ragboost.chunk_cache.store.keys import LAYOUT_VERSION
from ragboost.errors import ChunkCacheError

FORMAT = "ragboost-chunk-kv"
FILE_VERSION = 1
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
    sensitivity = chunk.sensitivity
    fields = {
        "key": key,
        "dtype": str(chunk.layers[0][0].dtype).removeprefix("torch."),
        "tokens": chunk.tokens,
        "base": chunk.base,
        "regime": chunk.regime,
        "length": chunk.length,
        "sensitivity": None if sensitivity is None else sensitivity.cpu().tolist(),
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
        "version": f"{FILE_VERSION}.{LAYOUT_VERSION}",
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
    sensitivity: tuple[float, ...] | None
    influence: Influence | None
    exact_after: str | None
    compute_s: Annotated[float, Field(ge=0)] | None
    layers: tuple[Count, ...] = Field(min_length=1)
    tensors: dict[str, tuple[tuple[Count, ...], str]]

    def problem(self) -> str | None:
        count = len(self.tokens)
        if self.base + count > self.length or self.length > _MAX_LENGTH:
            return f"{count} tokens from {self.base} on in a prompt of {self.length}"
        if self.sensitivity is not None and len(self.sensitivity) != count:
            return f"the sensitivity of {len(self.sensitivity)} tokens instead of {count}"
        if (influence := self.influence) is not None:
            orders = [influence.order, *([influence.peak_order] if influence.peak_order else [])]
            if len(influence.context) != len(influence.inter) or any(
                sorted(order) != list(range(count)) for order in orders
            ):
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


class ChunkFile:
    """An open chunk file with a valid header, on disk or in memory, which belongs to the chunk from
    then on. Raises `ChunkCacheError` with the reason if it is no valid file of this key."""

    def __init__(self, content: Path | bytearray, key: str) -> None:
        self._content, self._name = content, key
        with ExitStack() as on_failure:
            if isinstance(content, bytearray):
                self.size_bytes = len(content)
            else:
                self._name = content.name
                # Without O_NONBLOCK, opening a named pipe waits for its writer.
                descriptor = os.open(content, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    os.close(descriptor)
                    raise self._refusal("it is no regular file")
                self._file: BinaryIO = on_failure.enter_context(open(descriptor, "rb", buffering=0))
                self.size_bytes = status.st_size
            self._read_header(key)
            on_failure.pop_all()

    def __enter__(self) -> "ChunkFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not isinstance(self._content, bytearray):
            self._file.close()

    def fileno(self) -> int:
        return self._file.fileno()

    def chunk(self, layers: tuple[KV, ...]) -> ChunkKV:
        fields = self._fields
        sensitivity = fields.sensitivity
        return ChunkKV(
            tokens=fields.tokens,
            base=fields.base,
            layers=layers,
            regime=fields.regime,
            length=fields.length,
            sensitivity=None if sensitivity is None else torch.tensor(sensitivity),
            influence=fields.influence,
            exact_after=fields.exact_after,
            compute_s=fields.compute_s,
        )

    def read_layer(self, number: int) -> KV:
        layer = []
        checksum = 0
        for name in (f"{number:04d}.k", f"{number:04d}.v"):
            start, stop = self._ranges[name]
            buffer = self._read(start, stop - start)
            if len(buffer) != stop - start:
                raise self._refusal("it is truncated")
            checksum = zlib.crc32(buffer, checksum)
            shape, dtype = self._fields.tensors[name]
            layer.append(torch.frombuffer(buffer, dtype=_dtype(dtype)).reshape(shape))
        if checksum != self._fields.layers[number]:
            raise self._refusal(f"layer {number} has a wrong checksum")
        keys, values = layer
        return keys, values

    def read(self) -> ChunkKV:
        return self.chunk(tuple(self.read_layer(number) for number in range(self.num_layers)))

    def _read_header(self, key: str) -> None:
        try:
            header, start = self._parse()
            self._start = start  # of the tensors
            metadata = header.pop("__metadata__")
            version = f"{FILE_VERSION}.{LAYOUT_VERSION}"
            if (metadata["format"], metadata["version"]) != (FORMAT, version):
                raise self._refusal(f"it has format {metadata['format']} {metadata['version']}")
            if zlib.crc32(metadata["fields"].encode()) != int(metadata["checksum"]):
                raise self._refusal("its header has a wrong checksum")
            self._fields = _ChunkFields.model_validate_json(metadata["fields"])
            self._ranges = {
                name: (start + begin, start + end)
                for name, entry in header.items()
                for begin, end in [entry["data_offsets"]]
            }
        except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
            raise self._refusal(f"its header cannot be read: {_first_line(error)}") from error
        if self._fields.key != key:
            raise self._refusal(f"it holds chunk {self._fields.key}, not {key}")
        if (problem := self._fields.problem()) is not None:
            raise self._refusal(f"it describes {problem}")
        self._check_ranges()
        self.num_layers = len(self._fields.layers)
        self.num_tokens = len(self._fields.tokens)
        self.compute_s: float | None = self._fields.compute_s  # None if unmeasured

    def _read(self, start: int, count: int) -> bytearray | memoryview:
        if isinstance(self._content, bytearray):
            return memoryview(self._content)[start : start + count]
        buffer = bytearray(count)
        del buffer[os.preadv(self._file.fileno(), [buffer], start) :]
        return buffer

    def _parse(self) -> tuple[dict[str, Any], int]:
        (length,) = struct.unpack("<Q", self._read(0, 8))
        if not 0 < length <= min(_MAX_HEADER_BYTES, self.size_bytes - 8):
            raise self._refusal(f"its header has an invalid size of {length} bytes")
        header = from_json(bytes(self._read(8, length)))  # of bounded depth
        return header, 8 + length

    def _check_ranges(self) -> None:
        """Check the offsets, which no checksum covers, against the shapes, which one does."""
        if set(self._fields.tensors) != set(self._ranges):
            raise self._refusal("its header does not describe its tensors")
        for name, (shape, dtype) in self._fields.tensors.items():
            start, stop = self._ranges[name]
            size = math.prod(shape) * _dtype(dtype).itemsize
            if not type(start) is type(stop) is int or stop - start != size:
                raise self._refusal(f"tensor {name} has {stop - start} bytes instead of {size}")
        end = self._start
        for start, stop in sorted(self._ranges.values()):  # a byte belongs to one tensor
            if start != end:
                raise self._refusal(f"a tensor starts at byte {start}, not {end}")
            end = stop
        if end != self.size_bytes:
            raise self._refusal(f"it has {self.size_bytes} bytes instead of {end}")

    def _refusal(self, reason: str) -> ChunkCacheError:
        return ChunkCacheError(f"{self._name} cannot be used: {reason}")


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
