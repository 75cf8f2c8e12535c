"""A chunk file gives back what was written, or is refused; never anything else."""

import json
import os
import struct
import subprocess
import sys
import textwrap
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.files import decode, encode
from ragboost.errors import ChunkCacheError
from tests.chunk_cache.store.chunks import make_chunk, same

KEY = "0123abcd"
WHOLE = encode(KEY, make_chunk())


def read(path: Path, key: str = KEY) -> object:
    return decode(bytearray(path.read_bytes()), key)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_was_written_comes_back_bit_by_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "chunk"
    chunk = make_chunk(dtype=dtype)
    path.write_bytes(encode(KEY, chunk))
    assert same(read(path), chunk)  # type: ignore[arg-type]


def test_layers_that_are_views_of_one_buffer_can_be_stored(tmp_path: Path) -> None:
    buffer = torch.randn(4, 1, 2, 6, 4)
    chunk = replace(make_chunk(), layers=((buffer[0], buffer[1]), (buffer[2], buffer[3])))
    path = tmp_path / "chunk"
    path.write_bytes(encode(KEY, chunk))
    assert same(read(path), chunk)  # type: ignore[arg-type]


def test_the_file_is_ordinary_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "chunk.safetensors"
    path.write_bytes(WHOLE)
    assert torch.equal(load_file(path)["0001.k"], make_chunk().layers[1][0])


def test_writing_takes_the_memory_of_one_file() -> None:
    """So the limit of KV that waits to be written holds for what encodes it, too."""
    program = """
        from pathlib import Path
        import torch
        from ragboost.chunk_cache.store.files import encode
        from tests.chunk_cache.store.chunks import make_chunk

        def kib(name):
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith(name))

        chunk = make_chunk(num_tokens=300_000)  # 82 MiB
        encode("a", make_chunk())
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from now on
        before = kib("VmRSS")
        size = len(encode("a", chunk))
        print((kib("VmHWM") - before) * 1024 / size)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.5


@given(st.integers(0, len(WHOLE) - 1))
@settings(max_examples=60, deadline=None)
def test_a_truncated_file_is_refused(tmp_path_factory: pytest.TempPathFactory, size: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "chunk"
    path.write_bytes(WHOLE[:size])
    with pytest.raises(ChunkCacheError, match="cannot be used"):
        read(path)


@given(st.integers(0, 8 * len(WHOLE) - 1))
@settings(max_examples=150, deadline=None)
def test_a_flipped_bit_is_refused_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, bit: int
) -> None:
    path = tmp_path_factory.mktemp("bit") / "chunk"
    data = bytearray(WHOLE)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    try:
        chunk = read(path)
    except ChunkCacheError:
        return
    assert same(chunk, make_chunk()), "such as white space behind the header"  # type: ignore[arg-type]


def test_a_file_under_another_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chunk"
    path.write_bytes(WHOLE)
    with pytest.raises(ChunkCacheError, match=f"it holds chunk {KEY}, not of-another-model"):
        read(path, "of-another-model")


def test_a_file_of_another_version_or_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chunk"
    path.write_bytes(WHOLE.replace(b'"version":"1.3"', b'"version":"9.3"'))
    with pytest.raises(ChunkCacheError, match=r"it has format ragboost-chunk-kv 9\.3"):
        read(path)
    save_file({"weights": torch.ones(3)}, path)
    with pytest.raises(ChunkCacheError, match="its header cannot be read"):
        read(path)
    path.write_bytes(b"")
    with pytest.raises(ChunkCacheError, match="cannot be used"):
        read(path)


@pytest.mark.parametrize("offsets", ["swapped", "shared", "beyond the end"])
def test_offsets_that_no_checksum_covers_are_not_believed(tmp_path: Path, offsets: str) -> None:
    """A small file would be read as a large chunk, or one layer as another."""
    (length,) = struct.unpack("<Q", WHOLE[:8])
    header = json.loads(WHOLE[8 : 8 + length])
    one, other = header["0000.k"], header["0001.k"]
    if offsets == "swapped":
        one["data_offsets"], other["data_offsets"] = other["data_offsets"], one["data_offsets"]
    else:
        one["data_offsets"] = other["data_offsets"] if offsets == "shared" else [1 << 60, 1 << 61]
    text = json.dumps(header, separators=(",", ":")).encode()
    path = tmp_path / "chunk"
    path.write_bytes(struct.pack("<Q", len(text)) + text + WHOLE[8 + length :])
    assert same(read(path), make_chunk())  # type: ignore[arg-type]


def test_swapped_layers_of_the_same_shape_are_refused(tmp_path: Path) -> None:
    (length,) = struct.unpack("<Q", WHOLE[:8])
    size = 1 * 2 * 6 * (4 + 8) * 4
    first, second = WHOLE[8 + length :][:size], WHOLE[8 + length :][size : 2 * size]
    path = tmp_path / "chunk"
    path.write_bytes(WHOLE[: 8 + length] + second + first + WHOLE[8 + length + 2 * size :])
    with pytest.raises(ChunkCacheError, match="layer 0 has a wrong checksum"):
        read(path)


def crafted(*, header: Any = None, header_bytes: int | None = None, **fields: Any) -> bytes:
    """Return a file with valid checksums whose header an attacker has written."""
    (size,) = struct.unpack("<Q", WHOLE[:8])
    real = json.loads(WHOLE[8 : 8 + size])
    text = json.dumps({**json.loads(real["__metadata__"]["fields"]), **fields})
    real["__metadata__"] |= {"fields": text, "checksum": str(zlib.crc32(text.encode()))}
    raw = header if isinstance(header, bytes) else json.dumps(header or real).encode()
    return struct.pack("<Q", header_bytes or len(raw)) + raw + WHOLE[8 + size :]


def tensors(shape: list[int], dtype: str = "torch.float32") -> dict[str, Any]:
    """Return a description in which one tensor differs."""
    sizes = {"k": 4, "v": 8}
    found = {f"{n:04d}.{p}": [[1, 2, 6, sizes[p]], "torch.float32"] for n in range(3) for p in "kv"}
    return {"tensors": found | {"0001.k": [shape, dtype]}}


HOSTILE: dict[str, bytes] = {
    "a huge header": crafted(header_bytes=1 << 62),
    "a header of the whole file": crafted(header_bytes=len(WHOLE) - 8),
    "a nested header": crafted(header=b"[" * 200_000 + b"]" * 200_000),
    "a list": crafted(header=[1, 2]),
    "a number": crafted(header=b"7"),
    "no text": crafted(header=b"\xff\xfe\x00"),
    "metadata that is no object": crafted(header={"__metadata__": 3}),
    "fields that are no text": crafted(
        header={"__metadata__": {"format": "ragboost-chunk-kv", "version": "1.1", "fields": 3}}
    ),
    "another dtype than the tensors": crafted(dtype="float16"),
    "a dtype that is a function": crafted(dtype="load"),
    "a complex dtype": crafted(dtype="complex64"),
    "tensors that are no object": crafted(tensors=[1]),
    "no tensors": crafted(tensors={}),
    "a negative dimension": crafted(**tensors([1, 2, -6, -4])),
    "a dimension of 2 to the 62": crafted(**tensors([1, 1 << 62, 6, 4])),
    "a flat tensor": crafted(**tensors([48])),
    "another number of tokens": crafted(**tensors([1, 2, 12, 2])),
    "a tensor dtype that is a module": crafted(**tensors([1, 2, 6, 4], "torch.nn")),
    "integers": crafted(**tensors([1, 2, 6, 4], "torch.int32")),
    "tokens that are texts": crafted(tokens=["a"] * 6),
    "other tokens": crafted(tokens=[1] * 5),
    "negative tokens": crafted(tokens=[-1] * 6),
    "a fractional position": crafted(base=0.5),
    "a position behind the prompt": crafted(base=50),
    "a regime that is a number": crafted(regime=3),
    "an endless prompt": crafted(length=1 << 40),
    "too few layers": crafted(layers=[]),
    "too many layers": crafted(layers=[0] * 9),
    "layers that are texts": crafted(layers=["x"] * 3),
    "a field of an older version": crafted(sensitivity=[1.0] * 6),
    "an influence of other tokens": crafted(
        influence={"context": [], "inter": [], "a": 1, "b": 1, "order": [9] * 6}
    ),
    "an influence of a negative token": crafted(
        influence={"context": [], "inter": [], "a": 1, "b": 1, "order": [-1] * 6}
    ),
    "an influence of anything": crafted(influence={"__class__": "x"}),
    "a time that is a text": crafted(compute_s="soon"),
    "a field too many": crafted(more=1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_crafted_header_is_refused_and_never_a_traceback(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{KEY}.safetensors"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(ChunkCacheError, match="cannot be used"):
        read(path)
    tier = DiskTier(tmp_path, capacity_bytes=1 << 24)
    assert tier.load(KEY) is None
    assert tier.num_refused == 1
    assert not path.exists()


def test_the_header_that_the_crafted_ones_differ_from_is_read(tmp_path: Path) -> None:
    path = tmp_path / "chunk"
    path.write_bytes(crafted())
    assert same(read(path), make_chunk())  # type: ignore[arg-type]


def test_a_named_pipe_or_a_device_under_the_name_of_a_chunk_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = DiskTier(tmp_path, capacity_bytes=1 << 24)
    for name, make in (
        ("pipe", os.mkfifo),
        ("device", lambda path: path.symlink_to("/dev/zero")),
        ("folder", Path.mkdir),
    ):
        make(tmp_path / f"{name}.safetensors")
        assert name not in tier
        assert tier.load(name) is None
    assert caplog.text.count("no regular file") + caplog.text.count("Is a directory") == 3
