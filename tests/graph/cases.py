"""Random trees, and naive reference implementations of dependency attention."""

from typing import Any

import torch
from hypothesis import strategies as st

from ragboost.graph.layout import DepPrompt, Layout
from tests.chunk_cache.reference import _masks

tokens = st.integers(3, 8)
paths = st.lists(st.lists(tokens, min_size=1, max_size=6), min_size=1, max_size=8)
"""Few distinct tokens, so that paths share prefixes."""

SYSTEM, TASK = (9, 10, 11), (12, 13)
ELON = (20, 21)
GRAPH = (
    (*ELON, 30, 31, 40, 50, 51),
    (*ELON, 30, 31, 40, 52),
    (*ELON, 30, 31, 41, 53, 54, 55),
    (*ELON, 32, 42),
    (22, 23, 33, 43, 56),
    (22, 23, 33, 43),
)


def prompt(*, graph: tuple[tuple[int, ...], ...] = GRAPH) -> DepPrompt:
    return DepPrompt.of(SYSTEM, graph, TASK)


def plain_mask(layout: Layout, system: int, graph: list[list[int]]) -> torch.Tensor:
    """Return the mask by its definition: a token sees those whose path is a prefix of its own."""
    lines: list[tuple[int, ...]] = []  # for each slot of the tree, its tokens from the root
    known: set[tuple[int, ...]] = set()
    for path in graph:
        known |= {tuple(path[: i + 1]) for i in range(len(path))}
    for slot in range(system, layout.task):
        before = [line for line in known - set(lines) if line[-1] == layout.tokens[slot]]
        depth = int(layout.positions[slot]) - system + 1
        open_lines = [line for line in before if len(line) == depth]
        # In pre-order, the parent is the latest line that is one token shorter.
        parents = [line for line in lines if len(line) == depth - 1]
        lines.append(next(line for line in open_lines if depth == 1 or line[:-1] == parents[-1]))
    mask = torch.zeros(len(layout), len(layout), dtype=torch.bool)
    for row in range(len(layout)):
        for key in range(row + 1):
            if row >= layout.task or key < system:
                mask[row, key] = True
            elif row >= system:
                ours, theirs = lines[row - system], lines[key - system]
                mask[row, key] = ours[: len(theirs)] == theirs
    return mask


@torch.no_grad()
def masked_logits(model: Any, layout: Layout, mask: torch.Tensor) -> torch.Tensor:
    """Return the logits of the last token from one forward pass with a dense mask."""
    out = model(
        torch.tensor([layout.tokens]),
        position_ids=layout.positions[None],
        attention_mask=_masks(model, mask, layout.positions),
        use_cache=False,
        logits_to_keep=1,
    )
    logits: torch.Tensor = out.logits[0, -1]
    return logits
