"""A prompt as parts that depend on each other (DepCache section 5), and its layout as one sequence:
tokens, positions and visibility (algorithm 1). The mask is never in memory as a whole."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import torch

from ragboost.errors import RequestError

Positions = Literal["depth", "preorder"]
"""The position of a token. `depth`: after the tokens it sees, so that its KV does not depend on
siblings and is reusable as it is. `preorder`: its slot in the sequence, as in the paper."""
TokenPath = tuple[int, ...]
Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LinearNode:
    name: str
    tokens: TokenPath
    depends_on: tuple[str, ...] = ()  # parts that its tokens see, along with what those depend on


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A part made of relation paths from the root entity on, which share the tokens of a common
    prefix. Every segment (an entity, a relation) must be tokenised separately."""

    name: str
    paths: tuple[TokenPath, ...]
    depends_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DepPrompt:
    """Parts, each of which depends on earlier ones; the last is linear and not empty, and always
    computed, for its logits. Raises `RequestError` otherwise."""

    nodes: tuple[LinearNode | TreeNode, ...]

    def __post_init__(self) -> None:
        last = self.nodes[-1] if self.nodes else None
        if not isinstance(last, LinearNode) or not last.tokens:
            raise RequestError("the last node must be a LinearNode with at least one token")
        names: set[str] = set()
        for index, node in enumerate(self.nodes):
            if node.name in names:
                where = f"nodes[{index}].name"
                raise RequestError(f"{where} {node.name!r} is not unique", param=where)
            for other in node.depends_on:
                if other not in names:
                    where = f"nodes[{index}].depends_on"
                    raise RequestError(
                        f"{where} names {other!r}, which is not an earlier node", param=where
                    )
            names.add(node.name)

    @classmethod
    def of(
        cls, system: Sequence[int], paths: Sequence[Sequence[int]], task: Sequence[int]
    ) -> "DepPrompt":
        """Return the usual prompt: the graph depends on the system text, the task on both."""
        return cls(
            (
                LinearNode("system", tuple(system)),
                TreeNode("context", tuple(map(tuple, paths)), ("system",)),
                LinearNode("task", tuple(task), ("system", "context")),
            )
        )


# The paths (5, 6, 7), (5, 6, 8, 9) and (4, 3) between a system text and a task:
#
# slot         0        1   2    3        4   5    6   7    8         len = 9
# token      | 1      | 5   6  | 7      | 8   9  | 4   3  | 2       |
# run        | 0      | 1      | 2      | 3      | 4      | 5       |
# parent     | -1     | 0      | 1      | 1      | 0      | -1      |
# sees       |        | [0,1)  | [0,3)  | [0,3)  | [0,1)  | [0,8)   |
# end        | 8      | 6   6  | 4      | 6   6  | 8   8  | 9       |
# depth      | 0      | 1   2  | 3      | 3   4  | 1   2  | 5       |
# part       | system | context                            | task    |


class Run(NamedTuple):
    start: int
    stop: int
    parent: int  # index of the run it continues; -1 for none
    has_path: bool  # the tokens it sees are one path from the root, by which its KV can be found
    sees: tuple[Interval, ...]  # slots before it that all its tokens see, ascending and disjoint


@dataclass(frozen=True)
class Layout:
    tokens: list[int]
    positions: torch.Tensor  # for RoPE, (tokens,)
    runs: list[Run]  # in the order of their slots
    spans: dict[str, Interval]  # slots of each part
    node: torch.Tensor  # index of each slot's part, (tokens,)
    end: torch.Tensor  # first slot after the runs that continue each slot, (tokens,)
    closure: torch.Tensor  # parts that each part sees besides itself, (parts, parts) bool

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def task(self) -> int:
        """First slot of the last part."""
        return next(reversed(self.spans.values()))[0]

    @cached_property
    def is_chain(self) -> bool:
        return all(run.sees == (((0, run.start),) if run.start else ()) for run in self.runs)

    @property
    def next_position(self) -> int:
        return int(self.positions[-1]) + 1

    def sees(self, rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return a bool mask, broadcast over slots: True where tokens in `rows` see `keys`."""
        same = self.node[rows] == self.node[keys]
        branch = rows < self.end[keys]
        return (keys <= rows) & torch.where(
            same, branch, self.closure[self.node[rows], self.node[keys]]
        )

    def dense_mask(self) -> torch.Tensor:
        slots = torch.arange(len(self), device=self.node.device)
        return self.sees(slots[:, None], slots[None, :])

    def to(self, device: torch.device) -> "Layout":
        names = ("positions", "node", "end", "closure")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def with_last_in_place(self) -> "Layout":
        """Return the layout with the last token's position at its slot. Attention depends on
        distances only, so results do not change, and decoding can take slots for positions."""
        return replace(self, positions=self.positions + (len(self) - self.next_position))


def lay_out(prompt: DepPrompt, *, positions: Positions = "depth") -> Layout:
    builder = _LayoutBuilder(prompt)
    for node in prompt.nodes:
        builder.add(node)
    return builder.layout(positions)


class _LayoutBuilder:
    """A layout under construction, part by part; lists are by slot, except `_runs`."""

    def __init__(self, prompt: DepPrompt) -> None:
        self._index = {node.name: index for index, node in enumerate(prompt.nodes)}
        self._names = list(self._index)
        self._closure = torch.zeros(len(self._names), len(self._names), dtype=torch.bool)
        self._tokens: list[int] = []
        self._positions: list[int] = []
        self._runs: list[Run] = []
        self._spans: dict[str, Interval] = {}
        self._last_run: dict[str, int] = {}  # of the linear parts that are one path from the root

    def layout(self, positions: Positions) -> Layout:
        ends = [run.stop for run in self._runs]
        for index in range(len(ends) - 1, -1, -1):
            parent = self._runs[index].parent
            if parent >= 0:  # it comes before what continues it
                ends[parent] = max(ends[parent], ends[index])
        is_preorder = positions == "preorder"
        return Layout(
            self._tokens,
            torch.tensor(list(range(len(self._tokens))) if is_preorder else self._positions),
            self._runs,
            self._spans,
            _repeated(range(len(self._names)), self._spans.values()),
            _repeated(ends, [(run.start, run.stop) for run in self._runs]),
            self._closure,
        )

    def add(self, node: LinearNode | TreeNode) -> None:
        closure = self._closure[self._index[node.name]]
        for name in node.depends_on:
            closure |= self._closure[self._index[name]]
            closure[self._index[name]] = True
        dependencies = self._reach(node.name)
        intervals = merged([self._spans[name] for name in dependencies])
        parent = self._parent_run(dependencies)
        depth = max((self._positions[s] for a, b in intervals for s in range(a, b)), default=-1)
        start = len(self._tokens)
        root = Run(start, start, -1 if parent is None else parent, parent is not None, intervals)
        self._add_runs(node, root, position=depth + 1)
        self._spans[node.name] = (start, len(self._tokens))
        if isinstance(node, LinearNode) and parent is not None:
            self._last_run[node.name] = len(self._runs) - 1 if node.tokens else parent

    def _reach(self, name: str) -> list[str]:
        row = self._closure[self._index[name]]
        return [self._names[other] for other in row.nonzero().flatten().tolist()]

    def _parent_run(self, names: list[str]) -> int | None:
        """Return the last run of the path that these parts form, -1 for the root; None: of none."""
        path: set[str] = set()
        for name in names:  # in order: each must see all before it
            if name not in self._last_run or not path.issubset(self._reach(name)):
                return None
            path.add(name)
        return self._last_run[names[-1]] if names else -1

    def _add_runs(self, node: LinearNode | TreeNode, root: Run, *, position: int) -> None:
        paths = node.paths if isinstance(node, TreeNode) else (node.tokens,)
        # Branches still to lay out, the next one last: paths with the same first token, the number
        # of their tokens already laid out, the run before, and what it sees.
        todo = [(group, 0, root.parent, root.sees) for group in reversed(_groups(paths, 0))]
        while todo:
            group, done, parent, sees = todo.pop()
            stop = _common(group, done)
            start = len(self._tokens)
            self._tokens += group[0][done:stop]
            self._positions += range(position + done, position + stop)
            index = len(self._runs)
            self._runs.append(Run(start, len(self._tokens), parent, root.has_path, sees))
            below = merged([*sees, (start, len(self._tokens))])
            todo += [(part, stop, index, below) for part in reversed(_groups(group, stop))]


def _repeated(values: Iterable[int], intervals: Iterable[Interval]) -> torch.Tensor:
    sizes = torch.tensor([stop - start for start, stop in intervals])
    return torch.tensor(list(values)).repeat_interleave(sizes)


def _groups(paths: Sequence[TokenPath], done: int) -> list[list[TokenPath]]:
    groups: dict[int, list[TokenPath]] = {}
    for path in paths:
        if len(path) > done:
            groups.setdefault(path[done], []).append(path)
    return list(groups.values())


def _common(group: Sequence[TokenPath], done: int) -> int:
    low, high = min(group), max(group)
    limit = min(len(low), len(high))
    while done < limit and low[done] == high[done]:
        done += 1
    return done


def merged(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    union: list[Interval] = []
    for start, stop in sorted(intervals):
        if start == stop:
            continue
        if union and union[-1][1] >= start:
            union[-1] = (union[-1][0], max(stop, union[-1][1]))
        else:
            union.append((start, stop))
    return tuple(union)
