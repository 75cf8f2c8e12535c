"""A store that is full, damaged or another model's gives no KV: the engine computes it."""

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.prompt_plan import PromptPlan, find_chunks, plan_prompt
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.chunk_cache.families import build_adapter, make_prompt
from tests.chunk_cache.prompts import IDENTITY, learn, make_request


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter("qwen3-qk-norm")


@contextmanager
def opened(
    adapter: ModelAdapter, settings: EngineChunkSettings, *, model: str = "tiny"
) -> Iterator[ChunkLibrary]:
    """The library of an engine, from its start to its orderly end."""
    store = settings.make_store()
    identity = replace(IDENTITY, model=model)
    yield ChunkLibrary.of(adapter, store, identity=identity)
    store.close()


def fill(adapter: ModelAdapter, settings: EngineChunkSettings) -> None:
    with opened(adapter, settings) as library:
        system, chunks, _ = make_prompt()
        learn(library, adapter, system, chunks)


def plan(library: ChunkLibrary) -> PromptPlan | str:
    """Plan a prompt of all chunks."""
    request, tokens = make_request(*make_prompt())
    keys = find_chunks(request, tokens, library)
    return plan_prompt(request, tokens, prefix_tokens=0, keys=keys, library=library)


def on_disk(library: ChunkLibrary, tokens: list[int]) -> ChunkKV | None:
    """Read a chunk, also where computing it is faster."""
    assert isinstance(library.store, TieredStore)
    assert library.store.disk is not None
    return library.store.disk.load(library.key(tokens))


def test_a_chunk_that_exceeds_the_store_is_not_kept(adapter: ModelAdapter) -> None:
    with opened(adapter, EngineChunkSettings(host_bytes=1)) as library:
        system, chunks, _ = make_prompt()
        learn(library, adapter, system, chunks)

        assert all(library.key(tokens) not in library for tokens in chunks)
        assert plan(library) == "nothing_stored"


def test_a_full_store_keeps_what_fits_and_the_rest_is_computed(adapter: ModelAdapter) -> None:
    system, chunks, _ = make_prompt()
    with opened(adapter, EngineChunkSettings()) as library:
        learn(library, adapter, system, chunks)
        stored = library.store.get(library.key(chunks[0]))
        assert stored is not None
        room = 3 * stored.size_bytes
    with opened(adapter, EngineChunkSettings(host_bytes=room)) as library:
        learn(library, adapter, system, chunks)
        planned = plan(library)

    assert isinstance(planned, PromptPlan)
    kept = [len(kv.tokens) for kv in planned.stored if kv is not None]
    assert 0 < len(kept) <= 3
    assert planned.num_missing == planned.stop - sum(kept)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_computed(adapter: ModelAdapter, tmp_path: Path, share: float) -> None:
    settings = EngineChunkSettings(directory=str(tmp_path))
    fill(adapter, settings)
    files = list(tmp_path.glob("*.safetensors"))
    for file in files:
        file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])

    with opened(adapter, settings) as library:
        system, chunks, _ = make_prompt()
        assert plan(library) == "nothing_stored"
        assert [on_disk(library, tokens) for tokens in chunks] == [None] * len(files)
        learn(library, adapter, system, chunks)  # it can be stored anew
        assert isinstance(plan(library), PromptPlan)


def test_chunks_of_another_model_are_not_found(adapter: ModelAdapter, tmp_path: Path) -> None:
    settings = EngineChunkSettings(directory=str(tmp_path))
    fill(adapter, settings)

    with opened(adapter, settings, model="other weights") as library:
        assert plan(library) == "nothing_stored"
    with opened(adapter, settings) as library:
        assert all(on_disk(library, tokens) for tokens in make_prompt()[1])


def test_an_engine_that_is_killed_leaves_a_store_that_opens(
    adapter: ModelAdapter, tmp_path: Path
) -> None:
    settings = EngineChunkSettings(directory=str(tmp_path))
    program = f"""
        import os, signal
        from ragboost.chunk_cache.core.settings import EngineChunkSettings
        from tests.chunk_cache.families import build_adapter
        from tests.chunk_cache.core.test_bad_stores import fill
        written, sync = [], os.fdatasync
        def stop(descriptor):  # the third chunk is written and not yet renamed
            written.append(descriptor)
            sync(descriptor)
            if len(written) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
        os.fdatasync = stop
        fill(build_adapter("qwen3-qk-norm"), EngineChunkSettings(directory={str(tmp_path)!r}))
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert ended.returncode == -signal.SIGKILL

    with opened(adapter, settings) as library, opened(adapter, EngineChunkSettings()) as whole:
        system, chunks, _ = make_prompt()
        learn(whole, adapter, system, chunks)
        found = [on_disk(library, tokens) for tokens in chunks]
        wanted = [whole.find(whole.key(tokens), tokens) for tokens in chunks]

    assert sum(kv is not None for kv in found) == 2
    for kv, right in zip(found, wanted, strict=True):
        if kv is not None:
            assert right is not None
            for layer, other in zip(kv.layers, right.layers, strict=True):
                torch.testing.assert_close(layer, other)
