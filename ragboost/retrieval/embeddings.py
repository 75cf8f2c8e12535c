"""Retrieval by exact inner product of embeddings; the embedding model is the caller's."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ragboost.errors import RequestError
from ragboost.retrieval.retriever import best, check_k, searchable_text, with_score
from ragboost.types import Document

Vectors = npt.NDArray[np.float32]
EmbeddingFunction = Callable[[Sequence[str]], Vectors]
"""Texts to vectors of shape (number of texts, dimension)."""

_BATCH = 256


class EmbeddingRetriever:
    """Retriever over embeddings of title and text, computed for at most 256 texts at a time."""

    def __init__(self, documents: Sequence[Document], embed: EmbeddingFunction) -> None:
        if not documents:
            raise RequestError("documents must not be empty: there is nothing to index")
        self._documents = documents
        self._embed = embed
        self._index = self._vectors([searchable_text(document) for document in documents])

    def retrieve(self, query: str, k: int) -> list[Document]:
        return self.retrieve_batch([query], k)[0]

    def retrieve_batch(self, queries: Sequence[str], k: int) -> list[list[Document]]:
        check_k(k)
        if not queries:
            return []
        vectors, dimension = self._vectors(list(queries)), self._index.shape[1]
        if vectors.shape[1] != dimension:
            raise RequestError(
                f"embed gave vectors of {vectors.shape[1]} numbers for queries "
                f"and of {dimension} for documents"
            )
        return [self._search(vector, k) for vector in vectors]

    def _search(self, vector: Vectors, k: int) -> list[Document]:
        # Not a matrix product: BLAS may sum equal rows differently, which would break ties.
        scores = np.einsum("ij,j->i", self._index, vector)
        return [with_score(self._documents[i], scores[i]) for i in best(scores, k)]

    def _vectors(self, texts: Sequence[str]) -> Vectors:
        parts = [
            _checked(self._embed(texts[at : at + _BATCH]), len(texts[at : at + _BATCH]))
            for at in range(0, len(texts), _BATCH)
        ]
        if len({part.shape[1] for part in parts}) > 1:
            raise RequestError("embed gave vectors of different dimensions")
        return np.concatenate(parts)


def _checked(vectors: Vectors, num_texts: int) -> Vectors:
    array = np.ascontiguousarray(vectors, dtype=np.float32)
    if array.ndim != 2 or len(array) != num_texts or array.shape[1] == 0:
        raise RequestError(
            f"embed must give shape ({num_texts}, dimension) for {num_texts} texts, "
            f"got {array.shape}"
        )
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        raise RequestError(f"embed gave NaN or infinity for text {row} of {num_texts}")
    return array
