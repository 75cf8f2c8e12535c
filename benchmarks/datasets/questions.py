"""Convert a data set's questions to the lines that `ragboost eval-order` reads.

    python -m benchmarks.datasets.questions hotpot_dev.json > questions.jsonl

Where the file holds no retrieval, documents are retrieved by BM25. Malformed records are skipped
and counted.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.datasets.loaders import FORMATS, QuestionFormat, question_format, recognised
from benchmarks.datasets.pools import Pools, RawQuestion, chunked
from benchmarks.datasets.records import parse_records, read_records
from ragboost.errors import RequestError
from ragboost.evaluation.loading import MAX_SHOWN, text_of
from ragboost.types import Document, as_document


class ConvertedQuestions(NamedTuple):
    rows: list[dict[str, Any]]  # in file order
    format: str  # the file's format
    problems: list[str]  # errors of the records that were skipped


def convert(
    path: Path,
    *,
    name: str | None = None,
    corpus: Path | None = None,
    k: int = 10,
    limit: int | None = None,
) -> ConvertedQuestions:
    """Read the questions of a file: JSON Lines, also gzipped, JSON or CSV.

    Without a `name`, the first record shows the format. `corpus` holds the documents to retrieve
    from, `k` a question, where the file holds no retrieval.
    """
    pools = Pools()
    if corpus is not None:
        _fill(pools, corpus)
    form: QuestionFormat | None = None if name is None else question_format(name)

    def parse(row: Any) -> Iterable[RawQuestion]:
        nonlocal form, name
        if form is None:
            name = recognised(row)
            if name is None:
                raise RequestError("the format is not recognised; see --format")
            form = question_format(name)
        return form.parse(row, pools)

    raw, problems = parse_records(_records(path), parse)
    if not raw:
        reason = f": {problems[0]}" if problems else ""
        raise RequestError(f"{path} has no valid question{reason}")
    return ConvertedQuestions(list(_retrieved(raw[:limit], pools, k=k)), name or "", problems)


def _retrieved(raw: list[RawQuestion], pools: Pools, *, k: int) -> Iterator[dict[str, Any]]:
    retrievers: dict[str, Any] = {}
    for question in raw:
        documents = question.documents
        if not documents:
            if question.pool not in retrievers:
                from ragboost.integrations.retrieval.retriever import BM25Retriever

                retrievers[question.pool] = BM25Retriever(pools.documents(question.pool))
            documents = tuple(retrievers[question.pool].retrieve(question.text, k))
        yield _row(question, documents)


def _row(question: RawQuestion, documents: Iterable[Document]) -> dict[str, Any]:
    fields = {
        "id": question.id or None,
        "question": question.text,
        "documents": [
            {"id": document.id, "text": document.text}
            | ({"title": document.title} if document.title else {})
            for document in documents
        ],
        "answers": list(question.answers),
        "conversation_id": question.conversation,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix != ".csv":
        yield from read_records(path)
        return
    csv.field_size_limit(sys.maxsize)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for line, row in enumerate(csv.DictReader(file), 2):
                yield f"{path}:{line}", row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RequestError(f"cannot read {path}: {error}") from None


def _fill(pools: Pools, path: Path) -> None:
    """Add the documents of a corpus to the pool without a name; those of NarrativeQA's summaries to
    the pool of their story."""

    def add(row: Any) -> bool:
        if "summary" in row and "document_id" in row:
            for piece in chunked(row["summary"]):
                pools.add(row["document_id"], piece)
        elif "body" in row:
            for piece in chunked(text_of(row, "body")):
                pools.add("", piece, title=str(row.get("title") or ""))
        else:
            return False
        return True

    position = 0
    for where, row in _records(path):
        try:
            if isinstance(row, RequestError):
                raise row
            if add(row):
                continue
            document = as_document(row)
        except RequestError as error:
            raise RequestError(f"{where}: {error}") from None
        name = str(position) if document.id is None else document.id
        name = name if isinstance(name, str) else json.dumps(name)
        pools.add("", document.text, title=document.title or "", id=name)
        position += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("file", type=Path, help="the data set's file")
    parser.add_argument("--corpus", type=Path, help="documents to retrieve from")
    parser.add_argument("--format", help=f"{', '.join(FORMATS)}; by default recognised")
    parser.add_argument("--k", type=int, default=10, help="documents to retrieve a question")
    parser.add_argument("--limit", type=int, help="most questions to write")
    options = parser.parse_args()
    try:
        converted = convert(
            options.file,
            name=options.format,
            corpus=options.corpus,
            k=options.k,
            limit=options.limit,
        )
    except RequestError as error:
        sys.exit(f"error: {error}")
    for row in converted.rows:
        print(json.dumps(row))
    if converted.problems:
        shown = "; ".join(converted.problems[:MAX_SHOWN])
        print(f"skipped {len(converted.problems)} malformed records: {shown}", file=sys.stderr)


if __name__ == "__main__":
    main()
