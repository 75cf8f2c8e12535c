"""Lay a prompt of parts out as one sequence: its tokens, positions, and who sees whom (DepCache
algorithm 1).

Knows token ids. Does not know models or stored KV. The mask is never held as a whole: it is a
predicate on slots, and a list of runs with the intervals of slots that each sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

import torch

from ragboost.chunk_cache.dependency.prompt import DepPrompt, LinearNode, Path, TreeNode

Positions = Literal["depth", "preorder"]
"""`depth`: a token stands after what it sees, so its KV does not depend on siblings and is reusable
as it is. `preorder`: a token stands at its place in the sequence (the paper's)."""
Interval = tuple[int, int]


class Run(NamedTuple):
    """Tokens that follow one another without a branch.

    Attributes:
        start, stop: slots.
        parent: number of the run it continues; -1 for none.
        is_chain: what it sees is one line of tokens from the root, so that its KV can be found
            again by these tokens.
        sees: slots before it that all its tokens see, as ascending intervals that do not touch.
    """

    start: int
    stop: int
    parent: int
    is_chain: bool
    sees: tuple[Interval, ...]


@dataclass(slots=True)
class _Draft:
    """A layout while it is being made; lists are by slot, except `runs`."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    node: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)


@dataclass(frozen=True)
class Layout:
    """A prompt as a sequence. The token in slot s is at `positions[s]`.

    Attributes:
        tokens: ids, parts in order, trees in pre-order.
        positions: that tokens are rotated to, (tokens,).
        runs: in the order of their slots.
        spans: slots of each part, by name.
        node: number of each slot's part, (tokens,).
        end: first slot after the branch that begins with this slot's token, (tokens,).
        closure: which parts each part sees, (parts, parts) bool, itself left out.
    """

    tokens: list[int]
    positions: torch.Tensor
    runs: list[Run]
    spans: dict[str, Interval]
    node: torch.Tensor
    end: torch.Tensor
    closure: torch.Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def task(self) -> int:
        """First slot of the last part."""
        return next(reversed(self.spans.values()))[0]

    @cached_property
    def is_chain(self) -> bool:
        """Whether every token sees all before it: ordinary attention."""
        return all(run.sees in ((), ((0, run.start),)) for run in self.runs) and all(
            run.sees or run.start == 0 for run in self.runs
        )

    @property
    def next_position(self) -> int:
        """Where the first generated token stands."""
        return int(self.positions[-1]) + 1

    def num_pairs(self, rows: torch.Tensor | None = None) -> int:
        """Return how many pairs of a token and a token that it sees there are, itself included:
        the work of attention.

        Args:
            rows: slots of the tokens that count, ascending; None: all.
        """
        slots = torch.arange(len(self)) if rows is None else rows.cpu()
        starts = torch.tensor([run.start for run in self.runs])
        seen = torch.tensor([sum(b - a for a, b in run.sees) for run in self.runs])
        run = torch.searchsorted(starts, slots, right=True) - 1
        return int((seen[run] + slots - starts[run] + 1).sum())

    def sees(self, rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return whether the tokens in slots `rows` see those in slots `keys`, bool, broadcast."""
        same = self.node[rows] == self.node[keys]
        branch = rows < self.end[keys]
        return (keys <= rows) & torch.where(
            same, branch, self.closure[self.node[rows], self.node[keys]]
        )

    def dense_mask(self) -> torch.Tensor:
        """Return the whole mask, (tokens, tokens) bool, for training and for tests."""
        slots = torch.arange(len(self), device=self.node.device)
        return self.sees(slots[:, None], slots[None, :])

    def to(self, device: torch.device) -> "Layout":
        """Return the same layout with its tensors on a device."""
        return replace(
            self,
            positions=self.positions.to(device),
            node=self.node.to(device),
            end=self.end.to(device),
            closure=self.closure.to(device),
        )

    def with_last_in_place(self) -> "Layout":
        """Return the layout with all positions moved so far that the last token stands at its slot.

        Attention depends on distances, so nothing changes, and whoever decodes can take slots for
        positions.
        """
        return replace(self, positions=self.positions + (len(self) - self.next_position))


def lay_out(prompt: DepPrompt, *, positions: Positions = "depth") -> Layout:
    """Return the layout of a prompt."""
    draft = _Draft()
    names = [node.name for node in prompt.nodes]
    closure = torch.zeros(len(names), len(names), dtype=torch.bool)
    spans: dict[str, Interval] = {}
    last_run: dict[str, int] = {}  # of the linear parts that are one line from the root
    for number, node in enumerate(prompt.nodes):
        for name in node.depends_on:
            other = names.index(name)
            closure[number] |= closure[other]
            closure[number, other] = True
        seen = [names[other] for other in closure[number].nonzero().flatten().tolist()]
        intervals = merged([spans[name] for name in seen])
        parent = _line_end(prompt, node, seen, last_run)
        position = max((draft.positions[s] for a, b in intervals for s in range(a, b)), default=-1)
        start = len(draft.tokens)
        root = Run(start, start, -1 if parent is None else parent, parent is not None, intervals)
        _add_node(draft, node, root, number=number, position=position + 1)
        spans[node.name] = (start, len(draft.tokens))
        if isinstance(node, LinearNode) and parent is not None:
            last_run[node.name] = len(draft.runs) - 1 if node.tokens else parent
    if positions == "preorder":
        draft.positions = list(range(len(draft.tokens)))
    return Layout(
        draft.tokens,
        torch.tensor(draft.positions),
        draft.runs,
        spans,
        torch.tensor(draft.node),
        torch.tensor(draft.end),
        closure,
    )


def _line_end(
    prompt: DepPrompt, node: LinearNode | TreeNode, seen: list[str], last_run: dict[str, int]
) -> int | None:
    """Return the last run of the line that a part continues, -1 for the root; None where what it
    sees is no line."""
    if not seen:
        return -1
    by_name = {other.name: other for other in prompt.nodes}
    line: set[str] = set()
    for name in seen:  # in order: each must see all before it
        other = by_name[name]
        if name not in last_run or not line <= _reach(by_name, other):
            return None
        line.add(name)
    return last_run[seen[-1]]


def _reach(by_name: dict[str, LinearNode | TreeNode], node: LinearNode | TreeNode) -> set[str]:
    found = set(node.depends_on)
    for name in node.depends_on:
        found |= _reach(by_name, by_name[name])
    return found


def _add_node(
    draft: _Draft, node: LinearNode | TreeNode, root: Run, *, number: int, position: int
) -> None:
    """Append a part's runs. `root` says what its first run continues and sees."""
    paths = node.paths if isinstance(node, TreeNode) else (node.tokens,)
    # Branches still to lay out, the next one last: paths with the same first token, how many of
    # their tokens are done, the run before, and what it sees; an entry without paths closes a run.
    todo: list[tuple[list[Path], int, int, tuple[Interval, ...]] | int] = [
        (group, 0, root.parent, root.sees) for group in reversed(_groups(list(paths), 0))
    ]
    while todo:
        branch = todo.pop()
        if isinstance(branch, int):
            closed = draft.runs[branch]
            count = closed.stop - closed.start
            draft.end[closed.start : closed.stop] = [len(draft.tokens)] * count
            continue
        group, done, parent, sees = branch
        stop = _common(group, done)
        start = len(draft.tokens)
        draft.tokens += group[0][done:stop]
        draft.positions += range(position + done, position + stop)
        draft.node += [number] * (stop - done)
        draft.end += [0] * (stop - done)
        index = len(draft.runs)
        run = Run(start, len(draft.tokens), parent, root.is_chain, sees)
        draft.runs.append(run)
        todo.append(index)
        below = merged([*sees, (run.start, run.stop)])
        todo += [(part, stop, index, below) for part in reversed(_groups(group, stop))]


def _groups(paths: Sequence[Path], done: int) -> list[list[Path]]:
    """Group paths by their next token, in the order of first appearance; ended ones are left
    out."""
    groups: dict[int, list[Path]] = {}
    for path in paths:
        if len(path) > done:
            groups.setdefault(path[done], []).append(path)
    return list(groups.values())


def _common(group: Sequence[Path], done: int) -> int:
    """Return how many leading tokens all paths share; the first `done` are known to be equal."""
    low, high = min(group), max(group)
    limit = min(len(low), len(high))
    while done < limit and low[done] == high[done]:
        done += 1
    return done


def merged(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """Return the union as ascending intervals that do not touch."""
    union: list[Interval] = []
    for start, stop in sorted(intervals):
        if start == stop:
            continue
        if union and union[-1][1] >= start:
            union[-1] = (union[-1][0], max(stop, union[-1][1]))
        else:
            union.append((start, stop))
    return tuple(union)
