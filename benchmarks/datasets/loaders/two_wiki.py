"""2WikiMultihopQA: `train.json`, `dev.json`; HotpotQA's format with evidences."""

from benchmarks.datasets.loaders import Row, hotpotqa

parse = hotpotqa.parse


def matches(row: Row) -> bool:
    return hotpotqa.matches(row) and "evidences" in row
