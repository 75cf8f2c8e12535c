"""De-duplicate the documents of a request, equal if their keys are (RAGBoost section 6)."""

from collections.abc import Hashable, Sequence

from ragboost.types import Document


def unique_documents(documents: Sequence[Document]) -> tuple[Document, ...]:
    """Drop repeats of a document; the others stay in relevance order."""
    first = {document.key: document for document in reversed(documents)}
    if len(first) == len(documents):
        return tuple(documents)
    return tuple([first[key] for key in dict.fromkeys([document.key for document in documents])])


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
