from ragboost.graph.depcache import DepCache
from research.repair import repair
from tests.chunk_cache.families import build_adapter
from tests.chunk_cache.reference import ordinary
from tests.graph import cases


def test_recomputing_everything_is_ordinary_attention() -> None:
    adapter = build_adapter()
    kv = DepCache(adapter, positions="preorder").compute_depkv(cases.prompt())
    wanted = ordinary(adapter.model, kv.layout.tokens)
    assert (kv.logits - wanted).abs().max() > 1e-3

    logits = repair(adapter, kv, ratio=1.0)

    assert (logits - wanted).abs().max() < 1e-6 * wanted.abs().max()
