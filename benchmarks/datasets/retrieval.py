"""Retrieval runs on disk: questions, the documents retrieved for each, and their texts."""

import gzip
import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.datasets.workloads import Workload
from ragboost.errors import RequestError
from ragboost.types import Document, Request

PADDED_CHARACTERS = 960  # of a document: about 380 tokens of the tiny models

# Assumed document length for data sets whose corpus holds only extracts.
_WHOLE_DOCUMENT_TOKENS = {"multihoprag_evidence": 1_000}
_CHARACTERS_PER_TOKEN = 4


def load_data(
    path: Path | str, *, workload: str | None = None, retriever: str = "dense", k: int = 15
) -> Workload:
    """Read requests from a folder.

    The folder holds either `document_tokens.json.gz` and `{workload}_*.jsonl`, or
    `retrieved_{retriever}.jsonl`, `queries.jsonl` and `corpus.jsonl` (document lengths: one token
    per four characters; 1,000 for MultiHop-RAG, whose corpus holds extracts only). All may be
    gzipped. Lists are cut to `k`.

    Raises:
        RequestError: a file is missing; the message lists the files present.
    """
    folder = Path(path)
    lengths = folder / "document_tokens.json.gz"
    if lengths.is_file():
        if workload is None:
            raise RequestError(
                f"{folder} holds several workloads: choose one of zipf, topics, neardup"
            )
        rows = list(read_rows(folder, f"{workload}_*.jsonl*"))
        with gzip.open(lengths, "rt", encoding="utf-8") as file:
            tokens = json.load(file)
        return Workload(workload, contexts=[row["doc_ids"][:k] for row in rows], tokens=tokens)
    rows = list(read_rows(folder, f"retrieved_{retriever}.jsonl*"))
    contexts = [row["doc_ids"][:k] for row in rows]
    queries = {row["id"]: row for row in read_rows(folder, "queries.jsonl*")}
    asked = [queries.get(row["id"], {}) for row in rows]
    return Workload(
        f"{folder.name}/{retriever}",
        contexts=contexts,
        tokens=_document_tokens(folder, contexts),
        questions=tuple(query.get("question", "") for query in asked),
        conversations=_conversations(asked),
    )


def load_requests(
    folder: Path, *, retriever: str | None = None, k: int | None = None, corpus: str = "extracts"
) -> tuple[Workload, list[Request]]:
    """Read a workload and its requests as text.

    Without a retriever it is the native one, if there is one, with 5 documents, else dense with 10.
    """
    has_native = any(folder.glob("retrieved_native.jsonl*"))
    retriever = retriever or ("native" if has_native else "dense")
    workload = load_data(folder, retriever=retriever, k=k or (5 if has_native else 10))
    documents = _load_documents(folder, corpus=corpus)
    return workload, [
        Request(question, tuple(documents[d] for d in context if d in documents))
        for question, context in zip(workload.questions, workload.contexts, strict=True)
    ]


def _load_documents(folder: Path, *, corpus: str) -> dict[Any, Document]:
    """Return the documents by id; padded ones are cut to PADDED_CHARACTERS.

    As in the papers, prompts and hints name documents by number.
    """
    pattern = "corpus_padded*.jsonl*" if corpus == "padded" else "corpus.jsonl*"
    end = PADDED_CHARACTERS if corpus == "padded" else None
    return {
        row["id"]: Document(row["text"][:end], id=str(number), title=row.get("title") or None)
        for number, row in enumerate(read_rows(folder, pattern), 1)
    }


def read_rows(folder: Path, pattern: str) -> Iterator[dict[str, Any]]:
    """Read the rows of the folder's first file that matches the pattern, plain or gzipped.

    Raises:
        RequestError: no file matches.
    """
    found = sorted(folder.glob(pattern))
    if not found:
        there = ", ".join(sorted(file.name for file in folder.glob("*.jsonl*"))) or "no .jsonl file"
        raise RequestError(f"{folder} has no {pattern}; it has {there}")
    opener = gzip.open if found[0].suffix == ".gz" else open
    with opener(found[0], "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def _document_tokens(folder: Path, contexts: Iterable[Iterable[Hashable]]) -> dict[Hashable, int]:
    used = {document for context in contexts for document in context}
    if folder.name in _WHOLE_DOCUMENT_TOKENS:
        return dict.fromkeys(used, _WHOLE_DOCUMENT_TOKENS[folder.name])
    tokens: dict[Hashable, int] = {
        row["id"]: max(1, len(row["text"]) // _CHARACTERS_PER_TOKEN)
        for row in read_rows(folder, "corpus.jsonl*")
        if row["id"] in used
    }
    if missing := used - tokens.keys():
        raise RequestError(
            f"{folder}: the corpus lacks {len(missing)} documents, such as {missing.pop()!r}"
        )
    return tokens


def _conversations(asked: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, ...], ...]:
    turns: dict[str, list[int]] = {}
    for i, query in enumerate(asked):
        if "conversation_id" in query:
            turns.setdefault(query["conversation_id"], []).append(i)
    return tuple(
        tuple(sorted(positions, key=lambda i: asked[i]["turn"])) for positions in turns.values()
    )
