"""The counts and predictions of a batch job, added up over its windows."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ragboost.batch.catalog import DocumentCatalog
from ragboost.batch.plan import FilePlan, predict
from ragboost.formats.detection import ADVICE, FOUND
from ragboost.simulate import HitRate

_NOTHING = HitRate(0, 0)


@dataclass(frozen=True)
class BatchSummary:
    requests: int = 0
    rejected: int = 0  # malformed lines
    problem: str = ""  # of the first of them
    documents: int = 0  # documents in the requests, as given
    duplicates_removed: int = 0  # documents removed because their request repeats them
    blank_removed: int = 0  # documents removed because they have no text
    requests_reordered: int = 0  # requests whose documents are in another order
    # Requests in which documents were found, and by reason those in which none were.
    detections: Mapping[str, int] = field(default_factory=dict)
    windows: int = 0  # parts of the file that were planned by themselves
    cache_tokens: int | None = None  # capacity of the simulated prefix cache; None if unbounded
    block_size: int | None = None  # its block size in tokens; None for whole documents
    # Predicted hit rate of the input. Each window begins with an empty cache.
    before: HitRate = _NOTHING
    after: HitRate = _NOTHING  # predicted hit rate of the output, as well

    def with_window(
        self, catalog: DocumentCatalog, planned: FilePlan, *, rejected: int, problem: str
    ) -> "BatchSummary":
        entries, cache, block = catalog.entries, self.cache_tokens, self.block_size
        before = predict(catalog, None, cache_tokens=cache, block_size=block)
        after = predict(catalog, planned, cache_tokens=cache, block_size=block)
        num_documents = sum(len(entry.documents) for entry in entries)
        return replace(
            self,
            requests=self.requests + len(entries),
            rejected=self.rejected + rejected,
            problem=self.problem or problem,
            documents=self.documents + num_documents,
            duplicates_removed=self.duplicates_removed
            + num_documents
            - sum(map(len, planned.permutations)),
            blank_removed=self.blank_removed + catalog.num_blank,
            requests_reordered=self.requests_reordered
            + sum(list(p) != sorted(p) for p in planned.permutations),
            detections=dict(Counter(self.detections) + catalog.detections),
            windows=self.windows + 1,
            before=_sum(self.before, before),
            after=_sum(self.after, after),
        )

    def rejects_sentence(self, rejects: Path) -> str:
        """Say how many lines are malformed, why the first is, and where all of them are."""
        return f"malformed lines: {self.rejected:,}, see {rejects}; {self.problem}"

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


def _sum(*rates: HitRate) -> HitRate:
    return HitRate(*map(sum, zip(*rates, strict=True)))
