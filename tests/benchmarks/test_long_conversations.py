import asyncio

import pytest

from benchmarks.agents.long_conversations import WAYS, measure


@pytest.mark.parametrize("way", WAYS)
def test_what_a_turn_costs_grows_no_faster_than_what_is_sent(way: str) -> None:
    rows = asyncio.run(measure(way, [10, 20, 40]))
    first, second, third = [(row["bytecodes"], row["sent_kb"]) for row in rows]

    for at, margin in ((0, 1.1), (1, 1.01)):
        assert third[at] - second[at] <= 2 * margin * (second[at] - first[at])


def test_a_turn_of_the_library_costs_the_same_at_any_number() -> None:
    rows = asyncio.run(measure("library", [10, 40]))

    assert rows[0]["bytecodes"] == rows[1]["bytecodes"]
