"""De-duplicate the documents of a request, equal if their keys are (RAGBoost section 6)."""

from collections.abc import Hashable, Sequence

from ragboost.types import KEY_OF, Document


def unique_documents(documents: Sequence[Document]) -> tuple[Document, ...]:
    """Drop repeats of a document; the others stay in relevance order."""
    keys = list(map(KEY_OF, documents))
    if len(set(keys)) == len(keys):
        return tuple(documents)
    first = dict(zip(reversed(keys), reversed(documents), strict=True))
    return tuple(map(first.__getitem__, dict.fromkeys(keys)))


def distinct_elements(keys: Sequence[str]) -> tuple[Hashable, ...]:
    """Give copies of a document distinct names, as the context index requires."""
    if len(set(keys)) == len(keys):
        return tuple(keys)
    seen: dict[str, int] = {}
    elements: list[Hashable] = []
    for key in keys:
        copy = seen[key] = seen.get(key, -1) + 1
        elements.append((key, copy) if copy else key)
    return tuple(elements)
