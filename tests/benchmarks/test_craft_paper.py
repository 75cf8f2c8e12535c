"""The figures of Cache-Craft count what they say, on a small run with the reference model."""

import argparse
import json
from pathlib import Path

from benchmarks.chunks.craft_paper import chain_of, quality, summary, trace
from benchmarks.chunks.reference import MODEL
from ragboost.chunk_cache.store.influence import Influence
from research.craft.variants import Variant, Variants


def version(chunk: str, *context: str) -> Variant:
    inter = tuple(1.0 for _ in context)
    return Variant(chunk, f"{chunk} after {context}", Influence(context, inter, 1.0, 1.0, (0,)))


def test_a_prefix_cache_takes_the_same_beginning_and_set_cache_any_order_of_it() -> None:
    variants = Variants()
    for one in (version("a"), version("b", "a"), version("c", "a", "b")):
        variants.add(one)

    assert chain_of(variants, ["a", "b", "x"], in_order=True) == ("a", "b")
    assert chain_of(variants, ["b", "a", "x"], in_order=True) == ()
    assert chain_of(variants, ["x", "b", "a"], in_order=False) == ("a", "b")
    assert chain_of(variants, ["x", "c", "b"], in_order=False) == ()


def test_the_baselines_lie_between_reuse_and_full_attention() -> None:
    found = summary([quality(MODEL, 101, 2)])

    assert found["full"]["work"] >= found["prefix cache"]["work"] > found["set cache"]["work"]
    assert found["full"]["score"] == found["prefix cache"]["score"] == 1.0
    assert found["full cache, 30%"]["score"] < 0.7
    assert found["h2o, 30%"]["work"] == found["random, 30%"]["work"]


def test_a_trace_counts_every_request_and_stored_version(tmp_path: Path) -> None:
    rows = [{"id": str(n), "doc_ids": [f"d{(n + i) % 6}" for i in range(3)]} for n in range(8)]
    files = {
        "retrieved_dense.jsonl": rows,
        "queries.jsonl": [{"id": row["id"], "question": "?"} for row in rows],
        "corpus.jsonl": [{"id": f"d{n}", "text": "text"} for n in range(6)],
    }
    for name, lines in files.items():
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)))
    args = argparse.Namespace(retriever="dense", k=3, requests=8, alphas=[1.0])

    result = trace(MODEL, tmp_path, args)

    form = result["paper, alpha 1"]
    assert result["documents"] == 6
    assert sum(form["requests_by_hits"].values()) == 8
    assert sum(n * chunks for n, chunks in form["chunks_by_versions"].items()) == 6
    assert 0 < form["fewer_tokens_than_prefix_cache"] < 1
