"""The end-to-end benchmark: how it samples a plan, and a small run on the embedded engine."""

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.engines.end_to_end import load, measure, parse
from benchmarks.engines.replays import INDEPENDENT, rounds_of_sizes, stretches
from benchmarks.engines.served import Mode, Served, serve

# The same three documents in another order, or others.
ORDERS = ("012", "345", "210", "678", "120", "543")


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, Served]]:
    modes = {name: Mode() for name in INDEPENDENT}
    with serve(modes, engine="embedded", cache_tokens=8_000, max_model_len=8_192) as by_mode:
        yield by_mode


@pytest.fixture
def served(engines: dict[str, Served]) -> dict[str, Served]:
    for mode in engines.values():
        mode.reset()
    return engines


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def workload(folder: Path, *, conversations: int = 0) -> Path:
    """Nine documents and a request for each of ORDERS, as turns in turn where asked for."""
    write(
        folder / "corpus.jsonl",
        ({"id": f"d{i}", "text": f"Document {i} tells of {i}. " * 20} for i in range(9)),
    )
    rows = [{"id": order, "doc_ids": [f"d{digit}" for digit in order]} for order in ORDERS]
    write(folder / f"retrieved_{'native' if conversations else 'dense'}.jsonl", rows)
    queries: list[dict[str, Any]] = [
        {"id": order, "question": f"What of {order}?"} for order in ORDERS
    ]
    for i in range(len(ORDERS) if conversations else 0):
        queries[i] |= {"conversation_id": i % conversations, "turn": i // conversations}
    write(folder / "queries.jsonl", queries)
    return folder


def run(served: dict[str, Served], folder: Path, *flags: str) -> dict[str, Any]:
    options = parse(["--engine", "embedded", "--data", str(folder), "--k", "3", *flags])
    return measure(served, load(options), options)


def test_the_other_ways_are_sent_in_rounds_like_those_of_the_plan() -> None:
    bodies = [{"prompt": str(number)} for number in range(6)]
    cut = rounds_of_sizes(bodies, [3, 1, 2])
    assert [[body["prompt"] for body in each.bodies] for each in cut] == [
        ["0", "1", "2"],
        ["3"],
        ["4", "5"],
    ]
    assert all(each.before is None for each in cut)


@given(st.integers(1, 3_000), st.data())
def test_stretches_lie_apart_inside_the_plan_and_hold_as_many_as_asked(
    total: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, total))

    runs = stretches(total, count)

    assert sum(end - start for start, end in runs) == count
    assert all(end <= start for (_, end), (start, _) in pairwise(runs))
    assert min(runs)[0] >= 0
    assert max(runs)[1] <= total


def test_requests_alone_reuse_the_prefix_where_plain_ones_do_not(
    served: dict[str, Served], tmp_path: Path
) -> None:
    result = run(served, workload(tmp_path), "--at-once", "2")

    assert result["requests"] == 6
    assert result["plain"]["hit_rate"] < 0.1
    for mode in ("boosted", "online"):
        assert result[mode]["hit_rate"] > 0.3
        assert result[mode]["prefill_tokens"] < result["plain"]["prefill_tokens"]
    assert {"ttft_p50_ms", "ttft_p95_ms"} <= result["boosted"].keys()
    assert result["ttft_ratio"] > 0


def test_what_prepares_the_cache_does_not_count(served: dict[str, Served], tmp_path: Path) -> None:
    result = run(served, workload(tmp_path), "--requests", "4")

    assert [len(mode.answers) for mode in served.values()] == [4, 4, 4]
    boosted = result["boosted"]
    cached = 1 - boosted["prefill_tokens"] / boosted["prompt_tokens"]
    assert boosted["hit_rate"] == pytest.approx(cached, abs=0.001)


def test_turns_send_a_document_once(served: dict[str, Served], tmp_path: Path) -> None:
    result = run(served, workload(tmp_path, conversations=2), "--at-once", "2")

    assert [row["requests"] for row in result["turns"]] == [2, 2, 2]
    first, second, _ = result["turns"]
    assert first["boosted_prefill_tokens"] == first["plain_prefill_tokens"]
    assert second["boosted_prefill_tokens"] < second["plain_prefill_tokens"]
    assert result["boosted"]["prompt_tokens"] < result["plain"]["prompt_tokens"]
