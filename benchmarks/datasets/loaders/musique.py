"""MuSiQue: `musique_*.jsonl`, and HippoRAG's lists of the same records.

Paragraphs of all questions are one pool, to retrieve from.
"""

from collections.abc import Iterable

from benchmarks.datasets.loaders import Row
from benchmarks.datasets.pools import Pools, RawQuestion
from ragboost.errors import RequestError
from ragboost.evaluation.loading import answers_of, text_of


def matches(row: Row) -> bool:
    paragraphs = row.get("paragraphs")
    return isinstance(paragraphs, list) and "question" in row and "answer" in row


def parse(row: Row, pools: Pools) -> Iterable[RawQuestion]:
    paragraphs = row.get("paragraphs")
    if not isinstance(paragraphs, list) or not paragraphs:
        raise RequestError("paragraphs must be a list that is not empty", param="paragraphs")
    for paragraph in paragraphs:
        text = text_of(paragraph, "paragraph_text", "text")
        pools.add("", text, title=str(paragraph.get("title", "")))
    answers = answers_of([row.get("answer"), *(row.get("answer_aliases") or ())])
    yield RawQuestion(str(row.get("id", "")), text_of(row, "question"), answers)
