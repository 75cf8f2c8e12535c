"""A workload of many users' questions about one documentation, in sessions and conversations,
deterministic for a seed."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from ragboost.integrations.retrieval import BM25Retriever
from ragboost.types import Document

_FORMS = (
    "How does {name} work, and when should I use it?",
    "What does {name} return?",
    "Please explain {name} with its parameters.",
    "What can go wrong with {name}?",
)
_THEMES = 12  # parts of the library that most questions are about


class WorkloadTurn(NamedTuple):
    question: str
    documents: tuple[Document, ...]


class Workload(NamedTuple):
    sessions: list[WorkloadTurn]  # independent users, one question each
    conversations: list[list[WorkloadTurn]]  # users with several questions


def make_workload(
    documents: Sequence[Document],
    *,
    sessions: int,
    conversations: int,
    turns: int,
    k: int,
    seed: int,
) -> Workload:
    """Draw questions, most of them about a few themes, as at a support desk."""
    draw, search = random.Random(seed), BM25Retriever(documents)
    themes: dict[str, list[Document]] = {}
    for document in documents:
        themes.setdefault(".".join(str(document.id).split(".")[:2]), []).append(document)
    popular = sorted(themes.values(), key=len, reverse=True)[:_THEMES]

    def ask(theme: Sequence[Document]) -> WorkloadTurn:
        name = str(draw.choice(theme).id)
        question = draw.choice(_FORMS).format(name=name)
        return WorkloadTurn(
            question, tuple(search.retrieve(name.replace(".", " ").replace("_", " "), k))
        )

    return Workload(
        [ask(draw.choice(popular)) for _ in range(sessions)],
        [
            [ask(theme) for _ in range(turns)]
            for theme in (draw.choice(popular) for _ in range(conversations))
        ],
    )
