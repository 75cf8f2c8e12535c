"""The formula gives the bytes that stored chunks really take."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.files import encode
from ragboost.chunk_cache.store.sizes import corpus_sizes
from ragboost.cli import app
from ragboost.errors import ConfigError

CONFIG = {
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
}


def config_file(folder: Path, **fields: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**CONFIG, **fields}))
    return path


@pytest.mark.parametrize("tokens", [8, 100, 700])
def test_a_chunk_takes_the_bytes_that_the_formula_says(tmp_path: Path, tokens: int) -> None:
    sizes = corpus_sizes(config_file(tmp_path).parent, documents=5, tokens=tokens, dtype="float32")
    layers = tuple((torch.ones(1, 2, tokens, 8), torch.ones(1, 2, tokens, 8)) for _ in range(3))
    ids = tuple(range(150_000, 150_000 + tokens))
    chunk = ChunkKV(ids, 0, layers, "regime" * 9, tokens, exact_after="0" * 32, compute_s=0.123456)
    assert 5 * chunk.size_bytes == sizes.memory_bytes
    size = 5 * len(encode("a" * 48, chunk))
    assert size <= sizes.file_bytes <= size + 5 * (2048 + 3 * tokens)


def test_the_settings_it_prints_hold_the_corpus(tmp_path: Path) -> None:
    for documents in (3, 10_000_000):
        path = config_file(tmp_path)
        sizes = corpus_sizes(path, documents=documents, tokens=100, dtype="float16")
        settings = EngineChunkSettings(
            host_bytes=sizes.host_bytes_tiered, directory=str(tmp_path / "chunks")
        )
        store = settings.make_store()
        assert store.memory.capacity_bytes >= sizes.memory_bytes
        store.close()


def test_heads_are_divided_among_ranks_and_other_names_are_read(tmp_path: Path) -> None:
    inner = {**CONFIG, "head_dim": 16}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": inner}))
    sizes = corpus_sizes(tmp_path, documents=1, tokens=10, dtype="bfloat16", ranks=2)
    assert (sizes.kv_heads, sizes.head_dim, sizes.bytes_per_token) == (1, 16, 3 * 2 * 16 * 2)


@pytest.mark.parametrize(
    "fields", [{"kv_lora_rank": 512}, {"layer_types": ["linear_attention", "full_attention", {}]}]
)
def test_no_size_is_told_of_models_whose_chunks_are_not_reused(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    path = config_file(tmp_path, **fields)
    with pytest.raises(ConfigError, match="not stored"):
        corpus_sizes(path, documents=1, tokens=1, dtype="float16")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"num_hidden_layers": true}', '{"num_hidden_layers": -1}']
)
def test_a_file_that_is_no_configuration_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match="configuration"):
        corpus_sizes(tmp_path, documents=1, tokens=1, dtype="float16")
    with pytest.raises(ConfigError, match="dtype"):
        corpus_sizes(tmp_path, documents=1, tokens=1, dtype="int4")


def test_the_command_prints_them(tmp_path: Path) -> None:
    path = config_file(tmp_path)
    arguments = ["chunks", "size", "--model", str(path), "--documents", "7", "--tokens", "10"]
    printed = CliRunner().invoke(app, [*arguments, "--json"])
    assert json.loads(printed.output)["memory_bytes"] == 7 * 10 * 3 * 2 * 2 * 8 * 2
    assert "GiB" in CliRunner().invoke(app, arguments).output
