"""QASPER: `qasper-*.json`, papers by id, or one paper per record.

The paragraphs of a paper are a pool, to retrieve from. Unanswerable questions are left out.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.datasets.loaders import Row
from benchmarks.datasets.pools import Pools, RawQuestion
from ragboost.errors import RequestError
from ragboost.evaluation.loading import text_of


def matches(row: Row) -> bool:
    return any(_is_paper(value) for value in (row, *row.values()))


def parse(row: Row, pools: Pools) -> Iterable[RawQuestion]:
    papers = {str(row.get("id", "")): row} if _is_paper(row) else row
    for name, paper in papers.items():
        if not _is_paper(paper):
            raise RequestError(f"{name} must be a paper with full_text and qas", param=name)
        yield from _questions(name, paper, pools)


def _questions(name: str, paper: Any, pools: Pools) -> Iterator[RawQuestion]:
    title = str(paper.get("title", ""))
    for section in ({"paragraphs": [paper.get("abstract") or ""]}, *paper["full_text"]):
        for paragraph in section.get("paragraphs", ()):
            if paragraph.strip():
                pools.add(name, paragraph, title=title)
    for question in paper["qas"]:
        answers = [text for answer in question["answers"] if (text := _answer(answer["answer"]))]
        if answers:
            yield RawQuestion(
                str(question.get("question_id", "")),
                text_of(question, "question"),
                tuple(dict.fromkeys(answers)),
                pool=name,
            )


def _answer(answer: Any) -> str:
    if answer.get("unanswerable"):
        return ""
    if answer.get("yes_no") is not None:
        return "yes" if answer["yes_no"] else "no"
    return ", ".join(answer.get("extractive_spans") or ()) or str(
        answer.get("free_form_answer", "")
    )


def _is_paper(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("qas"), list)
        and isinstance(value.get("full_text"), list)
    )
