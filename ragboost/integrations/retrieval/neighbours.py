"""Read which documents of a corpus are likely to be retrieved together (FusionRAG section 3.1).
Documents are indices; the closest neighbour is *last*, next to the document itself."""

import json
from pathlib import Path

from ragboost.errors import RequestError
from ragboost.integrations.retrieval.corpus import Corpus
from ragboost.types import DocumentId
from ragboost.util.jsonl import read_objects

Neighbours = list[tuple[int, ...]]


def read_neighbours(corpus: Corpus, path: Path) -> Neighbours:
    """Return the neighbours of each document by a file of ids."""
    number = {json.dumps(document.id): place for place, document in enumerate(corpus)}
    found: Neighbours = [()] * len(corpus)
    for where, row in read_objects(path):
        near = row.get("neighbours")
        if not isinstance(near, list):
            raise RequestError(f"{where}: neighbours must be a list of ids, got {near!r}")
        places = [_place(number, identity, where) for identity in (row.get("id"), *near)]
        found[places[0]] = tuple(places[1:])
    return found


def _place(number: dict[str, int], identity: DocumentId, where: str) -> int:
    place = number.get(json.dumps(identity))  # `1` and `"1"` differ
    if place is None or identity is None:
        raise RequestError(f"{where}: no document of the corpus has the id {identity!r}")
    return place
