"""RAGBoost's own format, the one of `ragboost batch`: a question with its documents a line.

    {"question": "...", "documents": [{"id": "7", "text": "..."}], "answers": ["..."]}

`doc_ids` instead of `documents` refer to a corpus; `conversation_id` makes turns of a conversation.
"""

from collections.abc import Iterable

from ragboost.errors import RequestError
from ragboost.evaluation.loaders import Row
from ragboost.evaluation.questions import Pools, RawQuestion, answers_of, text_of
from ragboost.types import as_documents


def matches(row: Row) -> bool:
    return ("question" in row or "query" in row) and ("documents" in row or "doc_ids" in row)


def parse(row: Row, pools: Pools) -> Iterable[RawQuestion]:
    text = text_of(row, "question", "query")
    answers = answers_of(row.get("answers", row.get("answer")))
    if "documents" in row:
        documents = tuple(as_documents(row["documents"]))
    else:
        by_id = {document.id: document for document in pools.documents("")}
        missing = [name for name in row["doc_ids"] if str(name) not in by_id]
        if missing:
            raise RequestError(
                f"doc_ids names {missing[0]!r}, which is not in --corpus", param="doc_ids"
            )
        documents = tuple(by_id[str(name)] for name in row["doc_ids"])
    if not documents:
        raise RequestError("documents must not be empty", param="documents")
    session = row.get("conversation_id", row.get("session"))
    yield RawQuestion(
        str(row.get("id", "")),
        text,
        answers,
        documents,
        conversation=None if session is None else str(session),
    )
