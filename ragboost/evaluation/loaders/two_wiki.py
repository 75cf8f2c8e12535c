"""2WikiMultihopQA: `train.json`, `dev.json`; HotpotQA's format with evidences."""

from ragboost.evaluation.loaders import hotpotqa
from ragboost.evaluation.loaders.base import Row

parse = hotpotqa.parse


def matches(row: Row) -> bool:
    return hotpotqa.matches(row) and "evidences" in row
