"""The counts and predictions of a batch job."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ragboost.batch.simulate import HitRate
from ragboost.requests.formats.detection import ADVICE, FOUND


@dataclass(frozen=True)
class BatchSummary:
    requests: int
    rejected: int  # malformed lines
    problem: str  # of the first of them
    documents: int  # documents in the requests, as given
    duplicates_removed: int  # documents removed because their request repeats them
    blank_removed: int  # documents removed because they have no text
    requests_reordered: int  # requests whose documents are in another order
    # Requests in which documents were found, and by reason those in which none were.
    detections: Mapping[str, int]
    cache_tokens: int | None  # capacity of the simulated prefix cache; None if unbounded
    block_size: int | None  # its block size in tokens; None for whole documents
    before: HitRate  # predicted hit rate of the input
    after: HitRate  # predicted hit rate of the output

    def detections_sentence(self) -> str:
        """Say in how many requests no documents were found, why, and what helps."""
        missing = {name: num for name, num in self.detections.items() if name != FOUND}
        parts = [
            f"{num:,} {name} ({ADVICE[name]})" if name in ADVICE else f"{num:,} {name}"
            for name, num in sorted(missing.items(), key=lambda item: -item[1])
        ]
        found = self.detections.get(FOUND, 0)
        rest = f"; the others are as they came: {', '.join(parts)}" if parts else ""
        return f"documents found in {found:,} of {self.requests:,} requests{rest}"

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
