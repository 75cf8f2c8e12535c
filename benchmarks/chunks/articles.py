"""Corpus for the preprocessing benchmark: articles whose documents depend on each other, and three
sources of neighbours (similarity, trace, graph).

The documents are those of the synthetic tasks (`research.tasks`); an article is the documents of
one prompt. Twelve words with random fillers carry little topical signal, so embeddings are drawn
rather than computed: a direction per article, a rotation by the position within it, and noise. 69 %
of a document's two nearest neighbours belong to its own article, and 35 % of its ten nearest (seven
exist); the nearest one directly precedes it in 29 % and directly follows it in 28 % of all cases.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.chunks.neighbours import by_cooccurrence, by_edges, by_vectors
from ragboost.chunk_cache.eval.cases import Case
from ragboost.retrieval.neighbours import Neighbours
from research.tasks import SYSTEM, TASKS, ask, make_world

DOCUMENTS, LENGTH = 8, 12
DIMENSION, DRIFT, NOISE = 24, 0.7, 0.8
REQUESTS, RETRIEVED = 12, 5
"""Earlier requests per article in the trace, and documents retrieved from the article by each; one
more document comes from another article."""


@dataclass(frozen=True, slots=True)
class Articles:
    """A corpus and questions about some of its articles.

    Article i is documents size i to size i + size - 1, in order. The first `asked` articles have
    questions, whose cases hold one whole article.
    """

    documents: list[tuple[int, ...]]  # token ids
    size: int  # documents of an article
    cases: list[Case]
    asked: int
    vectors: npt.NDArray[np.float32]  # unit-length embeddings, (documents, dimension)
    trace: list[tuple[int, ...]]  # document numbers retrieved by each earlier request


def make_articles(
    *,
    seed: int,
    asked: int,
    num_articles: int = 200,
    size: int = DOCUMENTS,
    length: int = LENGTH,
) -> Articles:
    """Draw a corpus; deterministic for given arguments.

    The first `asked` articles have a question per task where the task applies; a document has
    `length` tokens.
    """
    rng = np.random.default_rng([seed, 77])
    world = make_world(rng, num_articles, documents=size, length=length)
    documents = [tuple(row) for article in world.documents.tolist() for row in article]
    cases: list[Case] = []
    for task in TASKS:
        questions = ask(rng, world, task=task)
        usable = questions.answer >= 0
        if task == "update":
            usable &= questions.hard
        cases += [
            Case(
                SYSTEM,
                tuple(documents[size * row : size * (row + 1)]),
                tuple(questions.tokens[row].tolist()),
                task=task,
                answer=int(questions.answer[row]),
            )
            for row in np.flatnonzero(usable[:asked]).tolist()
        ]
    vectors = _embeddings(rng, num_articles, size)
    return Articles(documents, size, cases, asked, vectors, _trace(rng, num_articles, size))


def _embeddings(rng: np.random.Generator, num_articles: int, size: int) -> npt.NDArray[np.float32]:
    topic = rng.normal(size=(num_articles, 1, DIMENSION)) / np.sqrt(DIMENSION)
    place = np.arange(size) * np.pi / size
    rotation = DRIFT * np.stack([np.cos(place), np.sin(place)], -1)
    noise = NOISE * rng.normal(size=(num_articles, size, DIMENSION)) / np.sqrt(DIMENSION)
    vectors = np.concatenate(
        [topic + noise, np.broadcast_to(rotation, (num_articles, size, 2))], -1
    ).reshape(num_articles * size, -1)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def _trace(rng: np.random.Generator, num_articles: int, size: int) -> list[tuple[int, ...]]:
    requests = []
    for article in range(num_articles):
        for _ in range(REQUESTS):
            own = rng.choice(size, min(RETRIEVED, size), replace=False) + size * article
            unrelated = rng.integers(num_articles * size)
            requests.append((*own.tolist(), int(unrelated)))
    return requests


def _similar(articles: Articles, top_n: int) -> Neighbours:
    return by_vectors(articles.vectors, top_n=top_n)


def _cooccurring(articles: Articles, top_n: int) -> Neighbours:
    return by_cooccurrence(articles.trace, num_documents=len(articles.documents), top_n=top_n)


def _linked(articles: Articles, top_n: int) -> Neighbours:
    """Link each document to the earlier ones of its article; nearer ones weigh more."""
    edges = [
        (number, before, 1.0 / (number - before))
        for number in range(len(articles.documents))
        for before in range(number - number % articles.size, number)
    ]
    return by_edges(edges, num_documents=len(articles.documents), top_n=top_n)


SOURCES: dict[str, Callable[[Articles, int], Neighbours]] = {
    "similarity": _similar,
    "trace": _cooccurring,
    "graph": _linked,
}
