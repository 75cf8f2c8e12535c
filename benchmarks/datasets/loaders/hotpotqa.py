"""HotpotQA: `hotpot_*.json`, also as exported from Hugging Face.

Paragraphs of all questions are one pool, to retrieve from.
"""

from collections.abc import Iterable

from benchmarks.datasets.loaders import Row
from benchmarks.datasets.pools import Pools, RawQuestion
from ragboost.errors import RequestError
from ragboost.evaluation.loading import answers_of, text_of


def matches(row: Row) -> bool:
    return "supporting_facts" in row and "context" in row


def parse(row: Row, pools: Pools) -> Iterable[RawQuestion]:
    for title, sentences in _paragraphs(row.get("context")):
        pools.add("", "".join(sentences).strip(), title=title)
    name = str(row.get("_id", row.get("id", "")))
    yield RawQuestion(name, text_of(row, "question"), answers_of(row.get("answer")))


def _paragraphs(context: object) -> Iterable[tuple[str, list[str]]]:
    if isinstance(context, dict):
        texts = context.get("sentences", context.get("content"))
        context = list(zip(context.get("title", ()), texts or (), strict=False))
    if not isinstance(context, list) or not context:
        raise RequestError("context must be a list of titles with sentences", param="context")
    for entry in context:
        if not isinstance(entry, list | tuple) or len(entry) != 2 or not isinstance(entry[1], list):
            raise RequestError("context must be a list of titles with sentences", param="context")
        if any(sentence.strip() for sentence in entry[1]):
            yield str(entry[0]), entry[1]
