"""Imagine requests to a corpus: what a retriever finds for a passage of each document."""

import random
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from ragboost.errors import ConfigError
from ragboost.ordering import CorpusPrior
from ragboost.retrieval.bm25 import BM25Retriever
from ragboost.retrieval.retriever import Retriever
from ragboost.types import Document, document_key

_WORDS = 14  # of a passage, about the length of a question
_EVERY = 64  # queries between two reports of progress


def make_retriever(name: str, documents: Sequence[Document]) -> Retriever:
    """Return the retriever `bm25`, or what the function `module:function` returns for a corpus."""
    if name == "bm25":
        return BM25Retriever(documents)
    module, _, function = name.partition(":")
    try:
        made: Any = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"--retriever must be bm25 or module:function, got {name!r}: {error}"
        ) from None
    retriever: Retriever = made(documents)
    return retriever


def imagine_contexts(
    documents: Sequence[Document],
    retriever: Retriever,
    *,
    k: int,
    limit: int,
    on_progress: Callable[[str, int, int], None] = lambda *_: None,
) -> list[list[int]]:
    """Return what is retrieved for a random passage of each of at most `limit` documents."""
    rng = random.Random(0)
    asked = documents if len(documents) <= limit else rng.sample(documents, limit)
    position = {document.key: i for i, document in enumerate(documents)}
    contexts = []
    for number, document in enumerate(asked, 1):
        words = document.text.split()
        at = rng.randrange(max(1, len(words) - _WORDS))
        found = retriever.retrieve(" ".join(words[at : at + _WORDS]), k)
        contexts.append([position[hit.key] for hit in found if hit.key in position])
        if number % _EVERY == 0 or number == len(asked):
            on_progress("asking", number, len(asked))
    return contexts


def corpus_prior(documents: Sequence[Document], contexts: Sequence[Sequence[int]]) -> CorpusPrior:
    """Name the documents of contexts as requests may carry them: with an id, or as text."""
    return CorpusPrior([sorted({d.key, document_key(d.text)}) for d in documents], contexts)
