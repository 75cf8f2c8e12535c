"""NarrativeQA: `qaps.csv` with `summaries.csv` as --corpus, or records exported from Hugging Face.

The pieces of one story or summary are a pool, to retrieve from.
"""

from collections.abc import Iterable

from benchmarks.datasets.loaders import Row
from benchmarks.datasets.pools import Pools, RawQuestion, chunked
from ragboost.errors import RequestError
from ragboost.evaluation.loading import answers_of, text_of


def matches(row: Row) -> bool:
    is_table = {"document_id", "question", "answer1"} <= row.keys()
    return is_table or (isinstance(row.get("document"), dict) and "answers" in row)


def parse(row: Row, pools: Pools) -> Iterable[RawQuestion]:
    if "document_id" in row:
        pool = text_of(row, "document_id")
        if not pools.has(pool):
            raise RequestError(
                f"the story {pool} is not there: give NarrativeQA's summaries.csv as --corpus",
                param="document_id",
            )
        answers = answers_of([row.get("answer1"), row.get("answer2")])
        yield RawQuestion("", text_of(row, "question"), answers, pool=pool)
        return
    document = row["document"]
    pool = str(document.get("id", ""))
    summary = document.get("summary")
    whole = document.get("text") or (summary or {}).get("text")
    if not isinstance(whole, str) or not whole.strip():
        raise RequestError("document has neither text nor summary.text", param="document")
    if not pools.has(pool):
        for piece in chunked(whole):
            pools.add(pool, piece)
    answers = answers_of([_text(answer) for answer in row["answers"]])
    yield RawQuestion("", _text(row.get("question")), answers, pool=pool)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return text_of(value, "text")
    return text_of({"question": value}, "question")
