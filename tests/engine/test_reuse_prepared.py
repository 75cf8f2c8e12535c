"""An engine takes chunks from a corpus that was prepared before it started."""

from pathlib import Path

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.precompute.catalog import ChunkCatalog
from ragboost.chunk_cache.precompute.corpus import CorpusChunk, precompute
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.engine.loading import load_model, make_engine
from tests.engine.runtime.test_reuse import SETTINGS, approx, parts_of
from tests.engine.submitting import Request


def test_a_prepared_corpus_is_reused_from_the_first_request_on(tmp_path: Path) -> None:
    loaded = load_model(SETTINGS)
    assert loaded.adapter is not None
    parts = parts_of([1, 2, 3])
    outcome = precompute(
        ChunkReuse(loaded.adapter, TieredStore()),
        DiskTier(tmp_path, capacity_bytes=1 << 30),
        ChunkCatalog(tmp_path),
        system=parts.system,
        chunks=[CorpusChunk(str(n), chunk) for n, chunk in enumerate(parts.chunks)],
        neighbours=[(2, 1), (0, 2), (1,)],
        max_tokens=512,
    )
    assert outcome.num_computed == 3

    engine = make_engine(loaded, SETTINGS.model_copy(update={"reuse_directory": tmp_path}))
    engine.start()
    exact, approximate, recomputed, computed = Request(engine, parts, reuse=approx()).sources()
    engine.stop()

    chunks = sum(map(len, parts.chunks))
    assert exact == len(parts.system)
    assert approximate + recomputed == chunks
    assert recomputed > 0
    assert computed == len(parts.token_ids) - exact - chunks
