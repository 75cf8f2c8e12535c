"""Find the subgraphs of a question: its entities, and the best relation paths from each."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from ragboost.errors import RequestError
from ragboost.graph.store import GraphStore
from ragboost.graph.triplets import RelationPath

_WORD = re.compile(r"\w+")
_SUFFIXES = ("ing", "ed", "es", "s")


class PathScorer(Protocol):
    def score(self, question: str, paths: Sequence[RelationPath]) -> Sequence[float]:
        """Return a finite number per path; higher is more similar."""
        ...


class LexicalScorer:
    """Cosine of word counts weighted by rarity among the paths, without case, common English
    endings and the root, which all share."""

    def score(self, question: str, paths: Sequence[RelationPath]) -> list[float]:
        bags = [Counter(_words(" ".join(path.parts[1:]))) for path in paths]
        frequency = Counter(word for bag in bags for word in bag)
        rarity = {word: math.log(1 + len(bags) / n) for word, n in frequency.items()}
        target = {word: rarity.get(word, 0.0) for word in _words(question)}
        size = math.hypot(*target.values()) or 1.0
        scores = []
        for bag in bags:
            weights = {word: count * rarity[word] for word, count in bag.items()}
            length = math.hypot(*weights.values()) or 1.0
            common = sum(weight * target.get(word, 0.0) for word, weight in weights.items())
            scores.append(common / (length * size))
        return scores


def best_paths(
    question: str, paths: Sequence[RelationPath], *, k: int, scorer: PathScorer | None = None
) -> list[RelationPath]:
    """Return the `k` paths most similar to a question, the earlier one of equals, in their original
    order, so that equal choices give equal prompts."""
    if k < 1:
        raise RequestError(f"k must be at least 1, got {k}", param="k")
    if len(paths) <= k:
        return list(paths)
    scores = np.asarray((scorer or LexicalScorer()).score(question, paths), dtype=float)
    if scores.shape != (len(paths),) or not np.isfinite(scores).all():
        raise RequestError(
            f"the scorer must give {len(paths)} finite numbers, got {scores!r}", param="scorer"
        )
    chosen = np.sort(np.argsort(-scores, kind="stable")[:k])
    return [paths[i] for i in chosen.tolist()]


def _words(text: str) -> list[str]:
    return [_stem(word) for word in _WORD.findall(text.casefold().replace("_", " "))]


def _stem(word: str) -> str:
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) >= len(suffix) + 3:
            return word.removesuffix(suffix)
    return word


_TOKEN = re.compile(r"\S+")
_TRIM = ".,;:!?\"'()[]{}"
_MAX_CANDIDATES = 20_000  # paths of one entity that are scored, in the order of the store
_MAX_WORDS = 8  # of an entity name that is recognised in a question


@dataclass(frozen=True, slots=True)
class Subgraph:
    """The relation paths retrieved for one entity, their root, in the order of the store."""

    entity: str
    paths: tuple[RelationPath, ...]


@dataclass(frozen=True, slots=True)
class GraphRetriever:
    """Retrieves subgraphs from a store; the defaults are the paper's."""

    store: GraphStore
    _: KW_ONLY
    hops: int = 2  # most relations of a path (DepCache's L)
    max_paths: int = 30  # kept per entity
    max_entities: int = 10  # taken from a question, in text order
    max_edges: int = 200  # followed from one entity, which bounds the cost of hubs
    scorer: PathScorer | None = None  # ranks paths for pruning; None: `LexicalScorer`

    def __post_init__(self) -> None:
        for name in ("hops", "max_paths", "max_entities", "max_edges"):
            if (value := getattr(self, name)) < 1:
                raise RequestError(f"{name} must be at least 1, got {value}", param=name)

    def retrieve(self, question: str, *, entities: Sequence[str] | None = None) -> list[Subgraph]:
        """Return a subgraph for each of these entities (or those that the question names) that has
        paths, which the question ranks."""
        roots = self.entities_in(question) if entities is None else entities
        subgraphs = []
        for root in roots[: self.max_entities]:
            name = self.store.find(root)
            paths = [] if name is None else list(islice(self._paths(name), _MAX_CANDIDATES))
            if name is not None and paths:
                best = best_paths(question, paths, k=self.max_paths, scorer=self.scorer)
                subgraphs.append(Subgraph(name, tuple(best)))
        return subgraphs

    def entities_in(self, question: str) -> list[str]:
        """Return the entities that a text names, in text order, without case and surrounding
        punctuation. The longest of overlapping names wins."""
        words = _TOKEN.findall(question)
        entities: dict[str, None] = {}
        start = 0
        while start < len(words):
            for stop in range(min(len(words), start + _MAX_WORDS), start, -1):
                name = self._entity(" ".join(words[start:stop]))
                if name is not None:
                    entities[name] = None
                    start = stop
                    break
            else:
                start += 1
        return list(entities)

    def _entity(self, text: str) -> str | None:
        trimmed = text.strip(_TRIM)
        names = (text, trimmed, trimmed.removesuffix("'s"), trimmed.removesuffix("\u2019s"))
        stored = (self.store.find(name) for name in names if name)
        return next((name for name in stored if name is not None), None)

    def _paths(self, root: str) -> Iterator[RelationPath]:
        """Yield the longest paths from an entity, depth first; none visits an entity twice."""
        todo: list[tuple[str, ...]] = [(root,)]
        while todo:
            parts = todo.pop()
            longer = []
            if len(parts) < 2 * self.hops + 1:
                visited = set(parts[::2])
                longer = [
                    (*parts, relation, tail)
                    for _, relation, tail in self.store.edges_from(parts[-1], limit=self.max_edges)
                    if tail not in visited
                ]
            if longer:
                todo += reversed(longer)
            elif len(parts) > 1:
                yield RelationPath(parts)
