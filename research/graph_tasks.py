"""Synthetic questions over relation paths, for measuring dependency attention.

Every query entity is the root of a tree: relations to entities, and further relations from those.
An edge is one token for relation and target, so a path is three tokens: root, edge, edge. The
subject of an edge is given by the tokens before it on its path. Knows token ids and answers.

    one_hop    QE(e) Q1(r) -> target of r from e
    two_hop    QE(e) Q2(r, s) -> target of s from the target of r from e
    root       QT(x) QR -> the root whose tree holds x as a leaf
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ragboost.graph.layout import DepPrompt, LinearNode, TreeNode
from research.dependency_tuning import TuningExample

TASKS = ("one_hop", "two_hop", "root")
NUM_ENTITIES = 40
NUM_RELATIONS = 6
SYSTEM = (0, 1, 2, 3)
PATH = 4
"""Starts every path if paths are written out one after the other."""

_KINDS = {
    "entity": NUM_ENTITIES,
    "edge": NUM_RELATIONS * NUM_ENTITIES,
    "relation": NUM_RELATIONS,
    "QE": NUM_ENTITIES,
    "QT": NUM_ENTITIES,
    "Q1": NUM_RELATIONS,
    "Q2": NUM_RELATIONS * NUM_RELATIONS,
    "QR": 1,
}


def first_id(kind: str) -> int:
    """Return the id of the first token of a kind."""
    names = list(_KINDS)
    return PATH + 1 + sum(_KINDS[name] for name in names[: names.index(kind)])


VOCAB_SIZE = PATH + 1 + sum(_KINDS.values())


@dataclass(frozen=True, slots=True)
class GraphQuestion:
    """A question about a graph and the id of its answer."""

    task: str
    tokens: tuple[int, ...]
    answer: int


@dataclass(frozen=True, slots=True)
class GraphCase:
    """A subgraph with questions."""

    paths: tuple[tuple[int, ...], ...]  # root, edge, edge; those of a root are adjacent
    questions: tuple[GraphQuestion, ...]  # of each task, in the order of `TASKS`

    def tree(self, question: GraphQuestion) -> DepPrompt:
        """Return the prompt with the paths as a tree."""
        return DepPrompt.of(SYSTEM, self.paths, question.tokens)

    def text(self, question: GraphQuestion) -> DepPrompt:
        """Return the prompt with the paths written out, for ordinary attention."""
        return DepPrompt(
            (
                LinearNode("system", SYSTEM),
                LinearNode("context", self._written(), ("system",)),
                LinearNode("task", question.tokens, ("system", "context")),
            )
        )

    def subgraphs(self, question: GraphQuestion) -> DepPrompt:
        """Return the prompt with each root's paths written out as a separate part, which sees only
        the system prompt and itself."""
        roots = dict.fromkeys(path[0] for path in self.paths)
        parts = tuple(
            LinearNode(f"subgraph-{root}", self._written(root), ("system",)) for root in roots
        )
        names = ("system", *(part.name for part in parts))
        task = LinearNode("task", question.tokens, names)
        return DepPrompt((LinearNode("system", SYSTEM), *parts, task))

    def example(self, *, is_tree: bool) -> TuningExample:
        """Return all questions with their answers over one context, for training."""
        context = (
            TreeNode("context", self.paths, ("system",))
            if is_tree
            else LinearNode("context", self._written(), ("system",))
        )
        tasks = tuple(
            LinearNode(f"task-{i}", (*question.tokens, question.answer), ("system", "context"))
            for i, question in enumerate(self.questions)
        )
        prompt = DepPrompt((LinearNode("system", SYSTEM), context, *tasks))
        return TuningExample(prompt, {task.name: 1 for task in tasks})

    def _written(self, root: int | None = None) -> tuple[int, ...]:
        chosen = [path for path in self.paths if root in (None, path[0])]
        return tuple(token for path in chosen for token in (PATH, *path))


def draw_case(
    rng: np.random.Generator, *, roots: int = 3, first: int = 3, second: int = 2, rounds: int = 1
) -> GraphCase:
    """Draw a subgraph: query entities, `first` relations of each, `second` of each of its targets,
    and `rounds` questions of each task."""
    entities = rng.permutation(NUM_ENTITIES)
    used = iter(entities.tolist())
    paths, facts = [], []  # facts: root, relation, target, relation, leaf
    for root in [next(used) for _ in range(roots)]:
        for relation in rng.permutation(NUM_RELATIONS)[:first].tolist():
            target = next(used)
            for deeper in rng.permutation(NUM_RELATIONS)[:second].tolist():
                leaf = next(used)
                facts.append((root, relation, target, deeper, leaf))
                paths.append(
                    (first_id("entity") + root, _edge(relation, target), _edge(deeper, leaf))
                )
    questions = [
        _ask(task, facts[int(rng.integers(len(facts)))]) for _ in range(rounds) for task in TASKS
    ]
    return GraphCase(tuple(paths), tuple(questions))


def draw_cases(num_cases: int, *, seed: int) -> list[GraphCase]:
    """Draw cases of the usual size; the same arguments give the same cases."""
    rng = np.random.default_rng(seed)
    return [draw_case(rng) for _ in range(num_cases)]


def composition() -> Sequence[tuple[int, ...]]:
    """Return for each token id the ids of its components, as in `tasks.composition`."""
    parts: list[tuple[int, ...]] = [(token,) for token in range(PATH + 1)]
    for number, (kind, size) in enumerate(_KINDS.items()):
        for i in range(size):
            names = _names(kind, i)
            parts.append((-1 - number, *names) if names else (first_id(kind) + i,))
    return parts


def _names(kind: str, index: int) -> tuple[int, ...]:
    entity, relation = first_id("entity"), first_id("relation")
    if kind == "edge":
        return relation + index // NUM_ENTITIES, entity + index % NUM_ENTITIES
    if kind in ("QE", "QT"):
        return (entity + index,)
    if kind == "Q1":
        return (relation + index,)
    if kind == "Q2":
        return relation + index // NUM_RELATIONS, relation + index % NUM_RELATIONS
    return ()


def _edge(relation: int, target: int) -> int:
    return first_id("edge") + relation * NUM_ENTITIES + target


def _ask(task: str, fact: tuple[int, int, int, int, int]) -> GraphQuestion:
    root, relation, target, deeper, leaf = fact
    entity = first_id("entity")
    if task == "one_hop":
        tokens = (first_id("QE") + root, first_id("Q1") + relation)
        return GraphQuestion(task, tokens, entity + target)
    if task == "two_hop":
        tokens = (first_id("QE") + root, first_id("Q2") + relation * NUM_RELATIONS + deeper)
        return GraphQuestion(task, tokens, entity + leaf)
    return GraphQuestion(task, (first_id("QT") + leaf, first_id("QR")), entity + root)
