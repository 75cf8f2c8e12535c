"""MT-RAG: tasks of `human/generation_tasks`, a turn of a conversation a line, with its contexts.

Turns without contexts, which are unanswerable, are left out.
"""

from collections.abc import Iterable

from benchmarks.datasets.loaders import Row
from benchmarks.datasets.pools import Pools, RawQuestion
from ragboost.errors import RequestError
from ragboost.evaluation.loading import answers_of, text_of
from ragboost.types import Document


def matches(row: Row) -> bool:
    return {"conversation_id", "contexts", "input", "targets"} <= row.keys()


def parse(row: Row, pools: Pools) -> Iterable[RawQuestion]:
    contexts, messages = row["contexts"], row["input"]
    if not isinstance(contexts, list):
        raise RequestError("contexts must be a list", param="contexts")
    if not isinstance(messages, list) or not messages:
        raise RequestError("input must be a list that is not empty", param="input")
    documents = tuple(
        Document(
            text_of(context, "text"),
            id=context.get("document_id"),
            title=context.get("title") or None,
        )
        for context in contexts
    )
    if not documents:
        return
    yield RawQuestion(
        str(row.get("task_id", "")),
        text_of(messages[-1], "text"),
        answers_of([target.get("text") for target in row["targets"]]),
        documents,
        conversation=str(row["conversation_id"]),
    )
