"""The benchmarks of texts send what they say, and count what the proxy changes."""

import json
import random

import pytest

from benchmarks.proxy.false_alarms import Application, Counts
from benchmarks.proxy.layouts import _found_from
from benchmarks.proxy.not_documents import SHAPES, Items, ListShape
from benchmarks.proxy.odd_inputs import INPUTS, OddInput


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.name for shape in SHAPES])
def test_a_list_comes_back_with_other_items(shape: ListShape) -> None:
    items = Items(random.Random(1), shape)
    lists = [items.draw() for _ in range(6)]
    assert all(text.startswith(shape.head) and "§" not in text for text in lists)
    assert (len(set(lists)) > 1) == (shape.moves != "same")


def test_a_conversation_resends_its_history() -> None:
    application = Application(random.Random(1), SHAPES[0], "talk")
    first, second = application.ask(0), application.ask(1)
    assert second[: len(first)] == first
    assert [message["role"] for message in second] == ["user", "assistant", "user"]


REFERENCE = 'Please refer to the document that begins with "a b" in the previous conversation.'


@pytest.mark.parametrize(
    ("role", "after", "wrong"),
    [
        ("tool", f'[{{"t": "{REFERENCE}"}}, 2]'.replace('"a b"', '\\"a b\\"'), 0),
        ("user", f'[{{"t": "{REFERENCE}"}}, 2]'.replace('"a b"', '\\"a b\\"'), 1),
        ("tool", '[2, {"t": "a b c"}]', 1),
    ],
)
def test_only_references_in_tool_results_are_right_changes(
    role: str, after: str, wrong: int
) -> None:
    counts = Counts()
    for _ in range(2):  # a resent message counts once
        counts.add(role, '[{"t": "a b c"}, 2]', after)
    assert (counts.figures()["changed"], counts.figures()["wrong"]) == (1, wrong)


@pytest.mark.parametrize("odd", INPUTS, ids=[odd.name for odd in INPUTS])
def test_an_odd_input_has_the_size_that_is_asked_for(odd: OddInput) -> None:
    size = 20_000
    assert 0.8 * size < len(json.dumps(odd.write(size))) <= size + 2


def test_a_layout_is_found_from_the_first_request_without_a_later_miss() -> None:
    assert _found_from([0, 4, 3, 4, 4]) == 4
    assert _found_from([4, 4]) == 1
    assert _found_from([4, 0]) == 0
