"""Retrieval by the inner product of embeddings, exact, with FAISS."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ragboost.errors import RequestError, import_extra
from ragboost.retrieval.retriever import check_k, searchable_text, with_score
from ragboost.types import Document

Embed = Callable[[Sequence[str]], npt.NDArray[np.float32]]
"""Returns a vector for each text, as rows; called with at most 256 texts."""

_BATCH = 256


class DenseRetriever:
    """Retriever over the embeddings of title and text.

    Which of equal scores at the last place are returned is FAISS's choice.

    Args:
        embed: for cosine similarity it returns vectors of length 1.

    Raises:
        MissingExtraError: the extra `retrieval` is not installed.
        RequestError: `embed` returns something else than finite vectors of one length.
    """

    def __init__(self, documents: Sequence[Document], embed: Embed) -> None:
        faiss: Any = import_extra("faiss", extra="retrieval")
        self._documents = documents
        self._embed = embed
        self._index: Any = None
        for at in range(0, len(documents), _BATCH):
            vectors = self._vectors(list(map(searchable_text, documents[at : at + _BATCH])))
            if self._index is None:
                self._index = faiss.IndexFlatIP(vectors.shape[1])
            self._index.add(vectors)

    def retrieve(self, query: str, k: int) -> list[Document]:
        return self.retrieve_batch([query], k)[0]

    def retrieve_batch(self, queries: Sequence[str], k: int) -> list[list[Document]]:
        check_k(k)
        found: list[list[Document]] = []
        for at in range(0, len(queries), _BATCH):
            texts = queries[at : at + _BATCH]
            if self._index is None:
                found += [[] for _ in texts]
                continue
            scores, places = self._index.search(self._vectors(texts), min(k, self._index.ntotal))
            for row in zip(scores, places, strict=True):
                order = np.lexsort((row[1], -row[0]))  # equal scores in the corpus's order
                found.append([with_score(self._documents[row[1][i]], row[0][i]) for i in order])
        return found

    def _vectors(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        vectors = np.ascontiguousarray(self._embed(texts), dtype=np.float32)
        length = self._index.d if self._index is not None else vectors.shape[-1]
        if vectors.shape != (len(texts), length) or not np.isfinite(vectors).all():
            raise RequestError(
                f"embed must return finite vectors of shape ({len(texts)}, {length}), "
                f"got {vectors.shape}",
                param="embed",
            )
        return vectors
