"""Keep the relation paths that are most similar to a question. The default score needs no model;
pass a scorer over your embeddings for better ones."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ragboost.errors import RequestError
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
