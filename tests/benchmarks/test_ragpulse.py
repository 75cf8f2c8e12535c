"""The simulation of a trace: every arm counts every token, and the arms rank as they must."""

from benchmarks.chunks.ragpulse import measure
from ragboost.evaluation.traces import TracePart, TraceRequest


def requests(count: int) -> list[TraceRequest]:
    """Return requests with a piece that varies before three of six documents."""
    return [
        TraceRequest(
            float(at),
            (TracePart("rules", 500), TracePart(f"user {at}", 300)),
            tuple([TracePart(f"document {(at + i * (1 + at % 2)) % 6}", 400) for i in range(3)]),
            (TracePart(f"question {at}", 20),),
        )
        for at in range(count)
    ]


def test_order_and_reuse_add_up() -> None:
    result = measure(requests(200), ratio=0.15, is_shared=False)

    found = {name: sizes["200k"] for name, sizes in result["not_computed"].items()}
    assert result["prompt_tokens"] == 200 * 2020
    assert result["moved"] > 150
    assert 0.2 < found["plain"] < found["order"] < 1
    assert found["both"] >= max(found["order"], found["reuse"]) - 0.01
    assert 1.0 <= result["rent_or_buy"]["200k"] < 2.0


def test_nothing_is_reused_at_a_ratio_of_one() -> None:
    result = measure(requests(100), ratio=1.0, is_shared=False)

    assert result["not_computed"]["reuse"] == result["not_computed"]["plain"]
