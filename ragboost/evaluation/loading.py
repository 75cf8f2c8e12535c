"""Read a file of questions and, where it holds no retrieval, retrieve their documents by BM25.

Malformed records are skipped and counted. Does not know settings or endpoints.
"""

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ragboost.errors import RequestError
from ragboost.evaluation.loaders import QuestionFormat, question_format, recognised
from ragboost.evaluation.questions import EvalQuestion, Pools, RawQuestion, chunked, text_of
from ragboost.jsonl import Line, decode, read_lines
from ragboost.types import as_document

_MAX_SHOWN = 3


class LoadedQuestions(NamedTuple):
    questions: tuple[EvalQuestion, ...]  # in file order
    format: str  # the file's format
    num_rejected: int = 0
    problems: tuple[str, ...] = ()  # the first of their errors


def load_questions(
    path: Path,
    *,
    name: str | None = None,
    corpus: Path | None = None,
    k: int = 10,
    limit: int | None = None,
) -> LoadedQuestions:
    """Read the questions of a file: JSON Lines, also gzipped, JSON or CSV.

    Without a `name`, the first record shows the format. `corpus` holds the documents to retrieve
    from, `k` a question, where the file holds no retrieval, or those that `doc_ids` refer to.
    """
    pools = Pools()
    if corpus is not None:
        _read_corpus(corpus, pools)
    form: QuestionFormat | None = None if name is None else question_format(name)
    raw: list[RawQuestion] = []
    problems: list[str] = []
    for where, row in _records(path):
        try:
            if isinstance(row, RequestError):
                raise row
            if form is None:
                name = recognised(row)
                if name is None:
                    raise RequestError("the format is not recognised; see --format")
                form = question_format(name)
            raw.extend(_parsed(form, row, pools))
        except RequestError as error:
            problems.append(f"{where}: {error}")
    if not raw:
        reason = f": {problems[0]}" if problems else ""
        raise RequestError(f"{path} has no valid question{reason}")
    questions = tuple(_retrieved(raw[:limit], pools, k=k))
    return LoadedQuestions(questions, name or "", len(problems), tuple(problems[:_MAX_SHOWN]))


def _parsed(form: QuestionFormat, row: Any, pools: Pools) -> list[RawQuestion]:
    try:
        return list(form.parse(row, pools))
    except (AttributeError, KeyError, TypeError) as error:
        raise RequestError(f"a field is missing or of another type: {error!r}") from None


def _retrieved(raw: list[RawQuestion], pools: Pools, *, k: int) -> Iterator[EvalQuestion]:
    retrievers: dict[str, Any] = {}
    seen: set[str] = set()
    for at, question in enumerate(raw):
        documents = question.documents
        if not documents:
            if question.pool not in retrievers:
                from ragboost.retrieval.bm25 import BM25Retriever

                retrievers[question.pool] = BM25Retriever(pools.documents(question.pool))
            documents = tuple(retrievers[question.pool].retrieve(question.text, k))
        name = (
            question.id if question.id and question.id not in seen else f"{question.id or 'q'}#{at}"
        )
        seen.add(name)
        yield EvalQuestion(name, question.text, documents, question.answers, question.conversation)


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the records of a file with their places; an error in place of an unreadable one."""
    if path.suffix == ".csv":
        yield from _table(path)
        return
    lines = list(read_lines(path))
    if not lines:
        return
    try:
        value = decode(b"\n".join(line.raw for line in lines))
    except RequestError as error:
        if lines[0].raw.lstrip()[:1] not in b"[{":
            raise RequestError(f"{path}:1: {error}") from None
        yield from ((line.where, _decoded(line)) for line in lines)
        return
    if isinstance(value, list):
        yield from ((f"{path}[{at}]", _object(row)) for at, row in enumerate(value))
    else:
        yield str(path) if len(lines) > 1 else lines[0].where, _object(value)


def _decoded(line: Line) -> Any:
    try:
        return _object(decode(line.raw))
    except RequestError as error:
        return error


def _object(value: Any) -> Any:
    if isinstance(value, dict):
        return value
    return RequestError(f"must be an object, got {type(value).__name__}")


def _table(path: Path) -> Iterator[tuple[str, Any]]:
    csv.field_size_limit(sys.maxsize)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                yield f"{path}:{number}", row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RequestError(f"cannot read {path}: {error}") from None


def _read_corpus(path: Path, pools: Pools) -> None:
    """Add the documents of a corpus to the pool without a name; those of NarrativeQA's summaries to
    the pool of their story."""
    for where, row in _records(path):
        try:
            if isinstance(row, RequestError):
                raise row
            if "summary" in row and "document_id" in row:
                for piece in chunked(row["summary"]):
                    pools.add(row["document_id"], piece)
            elif "body" in row:
                for piece in chunked(text_of(row, "body")):
                    pools.add("", piece, title=str(row.get("title") or ""))
            else:
                document = as_document(row)
                name = document.id
                if name is not None and not isinstance(name, str):
                    name = json.dumps(name)
                pools.add("", document.text, title=document.title or "", id=name)
        except RequestError as error:
            raise RequestError(f"{where}: {error}") from None
