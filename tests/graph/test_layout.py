"""Trees become sequences in which nobody sees a sibling."""

import pytest
import torch
from hypothesis import given, settings

from ragboost.errors import RequestError
from ragboost.graph.layout import DepPrompt, LinearNode, TreeNode, lay_out
from tests.graph import cases


def test_common_beginnings_stand_once_and_in_pre_order() -> None:
    layout = lay_out(DepPrompt.of((1,), ((5, 6, 7), (5, 6, 8, 9), (4, 3)), (2,)))

    assert layout.tokens == [1, 5, 6, 7, 8, 9, 4, 3, 2]
    assert layout.positions.tolist() == [0, 1, 2, 3, 3, 4, 1, 2, 5]
    assert layout.spans == {"system": (0, 1), "context": (1, 8), "task": (8, 9)}
    assert layout.next_position == 6


def test_preorder_positions_are_places_in_the_sequence() -> None:
    layout = lay_out(cases.prompt(), positions="preorder")

    assert layout.positions.tolist() == list(range(len(layout)))


def test_a_path_that_is_the_beginning_of_another_adds_nothing() -> None:
    longer = DepPrompt.of((1,), ((5, 6, 7),), (2,))
    both = DepPrompt.of((1,), ((5, 6), (5, 6, 7)), (2,))

    assert lay_out(both).tokens == lay_out(longer).tokens


@given(cases.paths)
@settings(max_examples=60, deadline=None)
def test_siblings_never_see_each_other(graph: list[list[int]]) -> None:
    layout = lay_out(DepPrompt.of(cases.SYSTEM, graph, cases.TASK))

    assert torch.equal(layout.dense_mask(), cases.plain_mask(layout, len(cases.SYSTEM), graph))


@given(cases.paths)
@settings(max_examples=40, deadline=None)
def test_the_runs_say_the_same_as_the_mask(graph: list[list[int]]) -> None:
    layout = lay_out(DepPrompt.of(cases.SYSTEM, graph, cases.TASK))
    mask = torch.zeros(len(layout), len(layout), dtype=torch.bool)
    for run in layout.runs:
        for row in range(run.start, run.stop):
            for start, stop in (*run.sees, (run.start, row + 1)):
                mask[row, start:stop] = True

    assert torch.equal(mask, layout.dense_mask())


@given(cases.paths)
@settings(max_examples=40, deadline=None)
def test_every_path_can_be_read_off_the_tree(graph: list[list[int]]) -> None:
    layout = lay_out(DepPrompt.of(cases.SYSTEM, graph, cases.TASK))
    lines = []
    for run in layout.runs[1:-1]:
        seen = [s for start, stop in run.sees for s in range(start, stop)]
        line = [layout.tokens[s] for s in [*seen, *range(run.start, run.stop)]]
        lines.append(line[len(cases.SYSTEM) :])

    for path in graph:
        assert any(line[: len(path)] == path for line in lines)


def test_one_path_is_ordinary_attention() -> None:
    layout = lay_out(DepPrompt.of((1, 2), ((5, 6, 7),), (3, 4)))

    assert layout.is_chain
    assert torch.equal(layout.dense_mask(), torch.ones(7, 7, dtype=torch.bool).tril())
    assert not lay_out(cases.prompt()).is_chain


def test_parts_see_what_they_depend_on_and_nothing_else() -> None:
    prompt = DepPrompt(
        (
            LinearNode("rules", (1, 2)),
            TreeNode("graph", ((5, 6), (5, 7))),
            LinearNode("example", (8, 9), ("rules",)),
            LinearNode("task", (3,), ("graph",)),
        )
    )
    layout = lay_out(prompt)
    mask = layout.dense_mask().int()

    assert layout.tokens == [1, 2, 5, 6, 7, 8, 9, 3]
    assert layout.positions.tolist() == [0, 1, 0, 1, 1, 2, 3, 2]
    assert mask[2].tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
    assert mask[6].tolist() == [1, 1, 0, 0, 0, 1, 1, 0]
    assert mask[7].tolist() == [0, 0, 1, 1, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ((), "last node"),
        ((LinearNode("task", ()),), "last node"),
        ((TreeNode("task", ((1,),)),), "last node"),
        ((LinearNode("a", (1,)), LinearNode("a", (1,))), "not unique"),
        ((LinearNode("a", (1,), ("b",)), LinearNode("b", (1,))), "not an earlier node"),
    ],
)
def test_a_prompt_that_is_none_is_refused(nodes: tuple[LinearNode, ...], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        DepPrompt(nodes)
