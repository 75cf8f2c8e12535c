"""Find the chunks of a corpus that are likely to be retrieved together (FusionRAG section 3.1).

Documents are indices. The neighbours of each document are in order, the closest *last*, next to
the chunk itself.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ragboost.errors import RequestError
from ragboost.integrations.retrieval.corpus import Corpus
from ragboost.integrations.retrieval.retriever import BM25Retriever, Retriever, searchable_text
from ragboost.types import Document, DocumentId
from ragboost.util.jsonl import read_objects

Neighbours = list[tuple[int, ...]]


def by_retriever(retriever: Retriever, documents: Sequence[Document], *, top_n: int) -> Neighbours:
    """Query a retriever with each document; equal documents are no neighbours."""
    first = {document.key: number for number, document in reversed(list(enumerate(documents)))}
    queries = [searchable_text(document) for document in documents]
    # Copies of a document come first in its own results: retrieve enough for the others too.
    copies = max(Counter(document.key for document in documents).values(), default=0)
    found = retriever.retrieve_batch(queries, (top_n + 1) * copies) if queries and top_n else []
    result: Neighbours = []
    for number, answer in enumerate(found):
        own = documents[number].key
        keys = dict.fromkeys(document.key for document in answer if document.key != own)
        result.append(tuple(first[key] for key in reversed(list(keys)[:top_n])))
    return result or [()] * len(documents)


def find_neighbours(corpus: Corpus, path: Path | None, *, top_n: int) -> Neighbours:
    """Return the neighbours of each document by a file of ids, or by BM25."""
    if top_n == 0:
        return [()] * len(corpus)
    if path is None:
        return by_retriever(BM25Retriever(corpus), corpus, top_n=top_n)
    number = {json.dumps(document.id): place for place, document in enumerate(corpus)}
    found: Neighbours = [()] * len(corpus)
    for where, row in read_objects(path):
        near = row.get("neighbours")
        if not isinstance(near, list):
            raise RequestError(f"{where}: neighbours must be a list of ids, got {near!r}")
        places = [_place(number, identity, where) for identity in (row.get("id"), *near)]
        found[places[0]] = tuple(places[1:][-top_n:])
    return found


def _place(number: dict[str, int], identity: DocumentId, where: str) -> int:
    place = number.get(json.dumps(identity))  # `1` and `"1"` differ
    if place is None or identity is None:
        raise RequestError(f"{where}: no document of the corpus has the id {identity!r}")
    return place
