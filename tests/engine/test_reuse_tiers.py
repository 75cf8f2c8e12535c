"""An engine finds the chunks on disk that an earlier one stored, and computes those it cannot
trust."""

from pathlib import Path

import pytest

from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.config import EngineSettings
from ragboost.engine.loading import LoadedModel, load_model, make_engine
from ragboost.engine.runtime.engine import Engine
from ragboost.errors import ConfigError
from tests.engine.runtime.test_reuse import SETTINGS, approx, parts_of, wait_for_chunks
from tests.engine.submitting import Request


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(SETTINGS)


def settings_for(directory: Path) -> EngineSettings:
    return SETTINGS.model_copy(update={"chunks": {"directory": str(directory)}})


def filled(loaded: LoadedModel, directory: Path) -> None:
    engine = make_engine(loaded, settings_for(directory))
    engine.start()
    Request(engine, parts_of([1, 2, 3]), reuse=approx()).finish()
    wait_for_chunks(engine, 3)
    engine.stop()
    assert len(list(directory.glob("*.safetensors"))) == 3


def started(loaded: LoadedModel, directory: Path) -> Engine:
    engine = make_engine(loaded, settings_for(directory))
    engine.start()
    return engine


def test_chunks_outlive_the_engine(loaded: LoadedModel, tmp_path: Path) -> None:
    filled(loaded, tmp_path)
    engine = started(loaded, tmp_path)
    request = Request(engine, parts_of([3, 1, 2], question=2), reuse=approx())
    assert request.sources() == (0, 90, 30, 20 + 12)
    assert engine.chunk_filler is not None
    assert engine.chunk_filler.reuse.library.num_hits == 3
    engine.stop()


def test_a_request_is_answered_where_every_file_is_broken(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    filled(loaded, tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 8
        path.write_bytes(data)
    engine = started(loaded, tmp_path)
    broken = Request(engine, parts_of([3, 1, 2], question=2), reuse=approx("reuse", 0.0))
    exact = Request(engine, parts_of([3, 1, 2], question=2), reuse=None)
    assert broken.tokens() == exact.tokens(), "all was computed"
    engine.stop()


def test_two_engines_share_a_directory(loaded: LoadedModel, tmp_path: Path) -> None:
    one, other = (make_engine(loaded, settings_for(tmp_path)) for _ in range(2))
    one.start()
    Request(one, parts_of([1, 2, 3]), reuse=approx()).finish()
    wait_for_chunks(one, 3)
    assert one.chunk_filler is not None
    assert isinstance(one.chunk_filler.reuse.store, TieredStore)
    one.chunk_filler.reuse.store.flush()
    other.start()
    sources = Request(other, parts_of([2, 3, 1], question=2), reuse=approx()).sources()
    assert sources[3] == 20 + 12, "only the system prompt and the question are computed"
    one.stop()
    other.stop()


def test_a_directory_that_cannot_be_used_is_told_by_the_setting(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match=r"engine\.chunks: .* cannot hold chunk files"):
        make_engine(loaded, settings_for(file))
