"""MultiHop-RAG: `MultiHopRAG.json`, with its `corpus.json` as --corpus.

Without a corpus, the evidence of all questions is the pool.
"""

from collections.abc import Iterable

from benchmarks.datasets.loaders import Row
from benchmarks.datasets.pools import Pools, RawQuestion
from ragboost.errors import RequestError
from ragboost.evaluation.loading import answers_of, text_of


def matches(row: Row) -> bool:
    return "evidence_list" in row and "query" in row


def parse(row: Row, pools: Pools) -> Iterable[RawQuestion]:
    evidence = row.get("evidence_list")
    if not isinstance(evidence, list):
        raise RequestError("evidence_list must be a list", param="evidence_list")
    for fact in evidence:
        pools.add("evidence", text_of(fact, "fact"), title=str(fact.get("title", "")))
    pool = "" if pools.has("") else "evidence"
    yield RawQuestion("", text_of(row, "query"), answers_of(row.get("answer")), pool=pool)
