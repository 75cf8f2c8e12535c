"""The end-to-end benchmark: how it samples a plan, and a small run on the embedded engine."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.replays import ALONE, replay_alone, replay_turns, stretches
from benchmarks.served import Served, serve
from ragboost.types import Document, Request

DOCUMENTS = [Document(f"Document {i} tells of {i}. " * 20, id=f"d{i}") for i in range(9)]
# The same three documents in another order, or others.
REQUESTS = [
    Request(f"What of {order}?", tuple(DOCUMENTS[int(digit)] for digit in order))
    for order in ("012", "345", "210", "678", "120", "543")
]


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, Served]]:
    with serve(ALONE, engine="embedded", cache_tokens=8_000, max_model_len=8_192) as by_way:
        yield by_way


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


def test_requests_alone_reuse_the_prefix_where_plain_ones_do_not(served: dict[str, Served]) -> None:
    result = replay_alone(served, REQUESTS, count=6, sample="stretches", at_once=2)

    assert result["requests"] == 6
    assert result["plain"]["hit_rate"] < 0.1
    for way in ("boosted", "online"):
        assert result[way]["hit_rate"] > 0.3
        assert result[way]["prefill_tokens"] < result["plain"]["prefill_tokens"]
    assert {"ttft_p50_ms", "ttft_p95_ms"} <= result["boosted"].keys()
    assert result["ttft_ratio"] > 0


def test_what_prepares_the_cache_does_not_count(served: dict[str, Served]) -> None:
    for way in served.values():
        way.empty()

    result = replay_alone(served, REQUESTS, count=4, sample="stretches", at_once=2)

    assert [len(way.samples) for way in served.values()] == [4, 4, 4]
    prompt_tokens = result["boosted"]["prompt_tokens"]
    computed = 1 - result["boosted"]["prefill_tokens"] / prompt_tokens
    assert result["boosted"]["hit_rate"] == pytest.approx(computed, abs=0.001)


def test_turns_send_a_document_once(served: dict[str, Served]) -> None:
    for way in served.values():
        way.empty()

    conversations = [REQUESTS[::2], REQUESTS[1::2]]
    result = replay_turns(served, conversations, count=6, at_once=2, max_prompt_tokens=8_000)

    assert [row["requests"] for row in result["turns"]] == [2, 2, 2]
    first, second, _ = result["turns"]
    assert first["boosted_prefill_tokens"] == first["plain_prefill_tokens"]
    assert second["boosted_prefill_tokens"] < second["plain_prefill_tokens"]
    assert result["boosted"]["prompt_tokens"] < result["plain"]["prompt_tokens"]
