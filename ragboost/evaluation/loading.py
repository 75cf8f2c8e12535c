"""Read questions with right answers, in the format of `ragboost batch`:

{"question": "...", "documents": [{"id": "7", "text": "..."}], "answers": ["..."]}

`doc_ids` refer to a corpus; `conversation_id` makes turns. Malformed records are skipped."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ragboost.errors import RequestError, json_type
from ragboost.integrations.retrieval.corpus import Corpus, find_documents
from ragboost.requests.recorded_request import RecordedRequest
from ragboost.types import Document, as_documents
from ragboost.util.jsonl import decode, read_lines


@dataclass(frozen=True, slots=True)
class EvalQuestion:
    id: str  # unique in the file
    text: str
    documents: tuple[Document, ...]  # most relevant first; not empty
    # Right answers; the first one is the assistant's message in later turns.
    answers: tuple[str, ...]
    conversation: str | None = None  # its conversation; None: it stands alone


def text_of(row: Mapping[str, object], *names: str) -> str:
    """Return the first of these fields that is present; it must be a non-empty text."""
    value = next((row[name] for name in names if row.get(name) is not None), None)
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"{names[0]} must be a non-empty string", param=names[0])
    return value


def answers_of(value: object) -> tuple[str, ...]:
    """Return answers given as a text, a number or a list of them, without blank ones."""
    values = value if isinstance(value, list | tuple) else [value]
    answers = [
        str(entry).strip() for entry in values if entry is not None and not isinstance(entry, dict)
    ]
    if not any(answers):
        raise RequestError("the right answer is missing", param="answers")
    return tuple(dict.fromkeys(answer for answer in answers if answer))


MAX_SHOWN = 3
_EXPECTED = (
    "expected the fields question, documents (or doc_ids with --corpus) and answers; "
    "`python -m benchmarks.datasets.questions FILE` in a clone of RAGBoost converts data sets"
)
_RECORDED = (
    "a log of proxy.record holds ids and lengths only; needed are questions, the documents' texts "
    "and right answers"
)


class LoadedQuestions(NamedTuple):
    questions: tuple[EvalQuestion, ...]  # in file order
    num_rejected: int = 0
    problems: tuple[str, ...] = ()  # the first of their errors


def load_questions(
    path: Path, *, corpus: Path | None = None, limit: int | None = None
) -> LoadedQuestions:
    """Read a file of JSON Lines, also gzipped, with the `corpus` of its `doc_ids`."""
    found = None if corpus is None else Corpus.read(corpus)
    parsed: list[EvalQuestion] = []
    problems: list[str] = []
    for line in read_lines(path):
        try:
            parsed.append(_question(decode(line.raw), found))
        except RequestError as error:
            problems.append(f"{line.where}: {error}")
    if not parsed:
        reason = f": {problems[0]}" if problems else ""
        raise RequestError(f"{path} has no valid question{reason}")
    questions = tuple(_named(parsed[:limit]))
    return LoadedQuestions(questions, len(problems), tuple(problems[:MAX_SHOWN]))


def _question(row: Any, corpus: Corpus | None) -> EvalQuestion:
    if not isinstance(row, dict):
        raise RequestError(f"must be an object, got {json_type(row)}")
    if RecordedRequest.of(row) is not None:
        raise RequestError(_RECORDED)
    if not (row.keys() & {"question", "query"} and row.keys() & {"documents", "doc_ids"}):
        raise RequestError(_EXPECTED)
    text = text_of(row, "question", "query")
    answers = answers_of(row.get("answers", row.get("answer")))
    if "documents" in row:
        documents = tuple(as_documents(row["documents"]))
    else:
        documents = find_documents(corpus, row["doc_ids"])
    if not documents:
        raise RequestError("documents must not be empty", param="documents")
    session = row.get("conversation_id", row.get("session"))
    conversation = None if session is None else str(session)
    return EvalQuestion(str(row.get("id", "")), text, documents, answers, conversation)


def _named(questions: list[EvalQuestion]) -> Iterator[EvalQuestion]:
    seen: set[str] = set()
    for at, question in enumerate(questions):
        is_new = question.id and question.id not in seen
        name = question.id if is_new else f"{question.id or 'q'}#{at}"
        seen.add(name)
        yield replace(question, id=name)
