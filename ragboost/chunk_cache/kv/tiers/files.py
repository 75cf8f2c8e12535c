"""The file format of one chunk's KV: safetensors with checksums.

The header identifies the file (format, version, key) and carries its own checksum; every layer has
a checksum too, so that layers can be used one by one. A layer is read into memory before it is
checked, since a memory map could change or fault after the check.
"""

import json
import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors.torch import save

from ragboost.chunk_cache.kv.chunk import ChunkKV
from ragboost.chunk_cache.kv.influence import Influence
from ragboost.chunk_cache.kv.keys import LAYOUT_VERSION
from ragboost.chunk_cache.kv.tiers.codec import CODECS, KV, pack, unpack
from ragboost.errors import ChunkCacheError

FORMAT = "ragboost-chunk-kv"
FILE_VERSION = 1
_MAX_HEADER_BYTES = 64 << 20


def encode(key: str, chunk: ChunkKV, *, codec: str) -> bytes:
    """Return the content of a chunk file.

    Args:
        key: key of the chunk; reading the file under another key fails.
        chunk: the KV.
        codec: a name in `CODECS`.
    """
    tensors: dict[str, torch.Tensor] = {}
    checksums = []
    for number, layer in enumerate(chunk.layers):
        packed = pack(layer, codec)
        checksum = 0
        for name in sorted(packed):
            tensors[f"{number:04d}.{name}"] = packed[name]
            checksum = zlib.crc32(_bytes_of(packed[name]), checksum)
        checksums.append(checksum)
    sensitivity = chunk.sensitivity
    fields = {
        "key": key,
        "codec": codec,
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
    return bytes(save(tensors, metadata=metadata))


class ChunkFile:
    """An open chunk file with a valid header.

    Attributes:
        num_layers: layers of the chunk.
        size_bytes: bytes of the file.
        num_tokens: tokens of the chunk.
        compute_s: seconds it took to compute; None if unmeasured.

    Raises:
        ChunkCacheError: the file is not a valid file of this key; the message names the reason.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        with ExitStack() as on_failure:
            self._file: BinaryIO = on_failure.enter_context(path.open("rb", buffering=0))
            self.size_bytes = os.fstat(self._file.fileno()).st_size
            self._read_header(key)
            on_failure.pop_all()

    def __enter__(self) -> "ChunkFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; no layer can be read afterwards."""
        self._file.close()

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._file.fileno()

    def chunk(self, layers: Sequence[KV]) -> ChunkKV:
        """Return the chunk with these layers."""
        fields = self._fields
        sensitivity, influence = fields["sensitivity"], fields["influence"]
        return ChunkKV(
            tokens=tuple(fields["tokens"]),
            base=fields["base"],
            layers=layers,
            regime=fields["regime"],
            length=fields["length"],
            sensitivity=None if sensitivity is None else torch.tensor(sensitivity),
            influence=None if influence is None else _influence(influence),
            exact_after=fields["exact_after"],
            compute_s=fields["compute_s"],
        )

    def read_layer(self, number: int) -> KV:
        """Read the keys and values of one layer.

        Raises:
            ChunkCacheError: the layer is corrupt.
            OSError: the file cannot be read.
        """
        packed = {}
        checksum = 0
        names = [name for name in self._ranges if int(name[:4]) == number]
        for name in sorted(names):
            start, stop = self._ranges[name]
            buffer = bytearray(stop - start)
            if os.preadv(self._file.fileno(), [buffer], start) != len(buffer):
                raise self._refusal("it is truncated")
            checksum = zlib.crc32(buffer, checksum)
            shape, dtype = self._fields["tensors"][name]
            values = torch.frombuffer(buffer, dtype=_dtype(dtype)).reshape(shape)
            packed[name.partition(".")[2]] = values
        if checksum != self._fields["layers"][number]:
            raise self._refusal(f"layer {number} has a wrong checksum")
        return unpack(packed, dtype=_dtype(self._fields["dtype"]))

    def read(self) -> ChunkKV:
        """Read the whole chunk. Raises like `read_layer`."""
        return self.chunk(tuple(self.read_layer(number) for number in range(self.num_layers)))

    def _read_header(self, key: str) -> None:
        try:
            header, start = self._parse()
            metadata = header.pop("__metadata__")
            version = f"{FILE_VERSION}.{LAYOUT_VERSION}"
            if (metadata["format"], metadata["version"]) != (FORMAT, version):
                raise self._refusal(f"it has format {metadata['format']} {metadata['version']}")
            if zlib.crc32(metadata["fields"].encode()) != int(metadata["checksum"]):
                raise self._refusal("its header has a wrong checksum")
            self._fields: dict[str, Any] = json.loads(metadata["fields"])
            self._ranges = {
                name: (start + begin, start + end)
                for name, entry in header.items()
                for begin, end in [entry["data_offsets"]]
            }
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise self._refusal(f"its header cannot be read: {error!r}") from error
        if self._fields["key"] != key:
            raise self._refusal(f"it holds chunk {self._fields['key']}, not {key}")
        self._check_ranges()
        self.num_layers = len(self._fields["layers"])
        self.num_tokens = len(self._fields["tokens"])
        self.compute_s: float | None = self._fields["compute_s"]

    def _parse(self) -> tuple[dict[str, Any], int]:
        (length,) = struct.unpack("<Q", os.pread(self._file.fileno(), 8, 0))
        if not 0 < length <= min(_MAX_HEADER_BYTES, self.size_bytes - 8):
            raise self._refusal(f"its header has an invalid size of {length} bytes")
        header = json.loads(os.pread(self._file.fileno(), length, 8))
        return header, 8 + length

    def _check_ranges(self) -> None:
        """Check the offsets, which the header's checksum does not cover, against the shapes, which
        it does. Swapped offsets are detected by the layers' checksums."""
        tensors, codec = self._fields["tensors"], self._fields["codec"]
        if codec not in CODECS or set(tensors) != set(self._ranges):
            raise self._refusal("its header does not describe its tensors")
        end = 0
        for name, (shape, dtype) in tensors.items():
            start, stop = self._ranges[name]
            size = torch.Size(shape).numel() * _dtype(dtype).itemsize
            if stop - start != size or start < 8:
                raise self._refusal(f"tensor {name} has {stop - start} bytes instead of {size}")
            end = max(end, stop)
        if end != self.size_bytes:
            raise self._refusal(f"it has {self.size_bytes} bytes instead of {end}")

    def _refusal(self, reason: str) -> ChunkCacheError:
        return ChunkCacheError(f"{self._path.name} cannot be used: {reason}")


def _dtype(name: str) -> torch.dtype:
    """Return the dtype of a name, with or without the prefix "torch."."""
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ChunkCacheError(f"unknown dtype {name}")
    return dtype


def _influence(fields: dict[str, Any]) -> Influence:
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Influence(a=fields["a"], b=fields["b"], **lists)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.flatten().view(torch.uint8).numpy())
