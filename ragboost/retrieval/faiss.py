"""Retrieval by exact inner product with faiss; the embedding model is the caller's."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ragboost.errors import RequestError, import_extra
from ragboost.retrieval.retriever import check_k, searchable_text, with_score
from ragboost.types import Document

Vectors = npt.NDArray[np.float32]
EmbeddingFunction = Callable[[Sequence[str]], Vectors]
"""Texts to vectors of shape (number of texts, dimension)."""

_BATCH = 256


class FaissRetriever:
    """Retriever over embeddings of title and text, computed for at most 256 texts at a time."""

    def __init__(self, documents: Sequence[Document], embed: EmbeddingFunction) -> None:
        if not documents:
            raise RequestError("documents must not be empty: there is nothing to index")
        self._documents = documents
        self._embed = embed
        vectors = self._vectors([searchable_text(document) for document in documents])
        faiss = import_extra("faiss", extra="retrieval")
        self._index = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(vectors)

    def retrieve(self, query: str, k: int) -> list[Document]:
        return self.retrieve_batch([query], k)[0]

    def retrieve_batch(self, queries: Sequence[str], k: int) -> list[list[Document]]:
        check_k(k)
        if not queries:
            return []
        vectors = self._vectors(list(queries))
        if vectors.shape[1] != self._index.d:
            raise RequestError(
                f"embed gave vectors of {vectors.shape[1]} numbers for queries "
                f"and of {self._index.d} for documents"
            )
        return [self._search(vector, min(k, len(self._documents))) for vector in vectors]

    def _search(self, vector: Vectors, k: int) -> list[Document]:
        """Search with a growing `k`: faiss may drop any of those that tie for the last place."""
        wanted = k
        while True:
            wanted = min(wanted + 1, len(self._documents))
            scores, positions = (row[0] for row in self._index.search(vector[None, :], wanted))
            if not np.isfinite(scores).all():
                raise RequestError("score must be finite: an inner product overflowed")
            if wanted == len(self._documents) or scores[-1] < scores[k - 1]:
                break
            wanted *= 2
        ranked = np.lexsort((positions, -scores))[:k]
        return [with_score(self._documents[positions[i]], scores[i]) for i in ranked]

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
