"""The counts and predictions of a batch job."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ragboost.simulate import HitRate


@dataclass(frozen=True)
class BatchSummary:
    requests: int
    rejected: int  # malformed lines
    problem: str  # of the first of them
    documents: int  # documents in the requests, as given
    duplicates_removed: int  # documents removed because their request repeats them
    requests_reordered: int  # requests whose documents are in another order
    cache_tokens: int | None  # capacity of the simulated prefix cache; None if unbounded
    block_size: int | None  # its block size in tokens; None for whole documents
    before: HitRate  # predicted hit rate of the input
    after: HitRate  # predicted hit rate of the output

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        for name in ("before", "after"):
            rate: HitRate = getattr(self, name)
            fields[name] = {
                "hit_rate": round(rate.hit_rate, 4),
                "cached_tokens": rate.cached_tokens,
                "prompt_tokens": rate.prompt_tokens,
            }
        return fields


def rejects_sentence(rejected: int, problem: str, rejects: Path) -> str:
    """Say how many lines are malformed, why the first is, and where all of them are."""
    return f"malformed lines: {rejected:,}, see {rejects}; {problem}"
