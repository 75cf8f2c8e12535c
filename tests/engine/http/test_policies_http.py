"""An HTTP example of each mechanism in `docs/chunk-policies.md` that is not tested elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.precompute.catalog import ChunkCatalog
from ragboost.chunk_cache.precompute.corpus import CorpusChunk, precompute
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.engine import create_engine_app
from ragboost.engine.loading import load_model
from ragboost.serving import serve_in_thread
from tests.engine.conftest import SETTINGS

SYSTEM = list(range(20, 40))
CHUNKS = [[40 + (n * 131 + i * i * 7) % 4000 for i in range(40)] for n in range(3)]
QUESTION = list(range(100, 112))
SOURCES = ("exact", "reused", "recomputed", "computed")
QUIET = {"kv_events_endpoint": None, "kv_events_replay_endpoint": None}


@contextmanager
def serving(**settings: Any) -> Iterator[str]:
    app = create_engine_app(SETTINGS.model_copy(update={**QUIET, **settings}))
    with serve_in_thread(app) as url:
        yield url


def post(url: str, order: list[int], reuse: Any, *, max_tokens: int = 4) -> httpx.Response:
    prompt, spans = list(SYSTEM), []
    for number in order:
        spans.append([len(prompt), len(prompt) + len(CHUNKS[number])])
        prompt += CHUNKS[number]
    body = {
        "prompt": prompt + QUESTION,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "ragboost": {"reuse": reuse, "chunks": spans},
    }
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60)


def sources(response: httpx.Response) -> tuple[int, ...]:
    response.raise_for_status()
    return tuple(response.json()["usage"]["ragboost"][name] for name in SOURCES)


@pytest.mark.parametrize("name", ["dense", "tiled", "varlen"])
def test_selection_runs_with_any_attention(name: str) -> None:
    with serving(reuse_attention=name) as url:
        post(url, [0, 1, 2], "approx")
        assert sources(post(url, [2, 0, 1], {"policy": "gradual", "ratio": 0.25})) == (
            (20, 90, 30, 12)
        )


def test_chunks_on_disk_are_loaded_by_the_next_server(tmp_path: Path) -> None:
    with serving(reuse_directory=tmp_path) as url:
        post(url, [0, 1, 2], "approx")
    with serving(reuse_directory=tmp_path) as url:
        assert sources(post(url, [2, 0, 1], {"policy": "epic", "ratio": 0.25})) == (20, 90, 30, 12)


@pytest.mark.parametrize("policy", ["cachecraft", "hybrid-offline"])
def test_policies_that_need_measurements_are_served_from_a_prepared_corpus(
    tmp_path: Path, policy: str
) -> None:
    adapter = load_model(SETTINGS).adapter
    assert adapter is not None
    precompute(
        ChunkReuse(adapter, TieredStore()),
        DiskTier(tmp_path, capacity_bytes=1 << 30),
        ChunkCatalog(tmp_path),
        system=SYSTEM,
        chunks=[CorpusChunk(str(n), tuple(chunk)) for n, chunk in enumerate(CHUNKS)],
        neighbours=[(2, 1), (0, 2), (1,)],
        max_tokens=512,
    )
    with serving(reuse_directory=tmp_path) as url:
        assert policy in httpx.get(f"{url}/chunk_reuse").json()["policies"]
        found = sources(post(url, [1, 0, 2], {"policy": policy, "ratio": 0.25}))
        assert found == (20, 90, 30, 12)
