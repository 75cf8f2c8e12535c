"""What a batch job tells about itself. Knows numbers only."""

from dataclasses import asdict, dataclass
from typing import Any

from ragboost.simulate import HitRate


@dataclass(frozen=True)
class BatchSummary:
    """What a job did.

    Attributes:
        requests: lines written.
        rejected: malformed lines.
        documents: documents in the requests, as given.
        duplicates_removed: of these, not sent because the request has the same one already.
        requests_reordered: requests whose documents stand in another order now.
        cache_tokens: capacity of the predicted prefix cache; None: unbounded.
        block_size: its block size; None: whole documents.
        before: predicted use of the cache by the documents of the input as it is.
        after: the same for the output.
    """

    requests: int
    rejected: int
    documents: int
    duplicates_removed: int
    requests_reordered: int
    cache_tokens: int | None
    block_size: int | None
    before: HitRate
    after: HitRate

    def as_json(self) -> dict[str, Any]:
        """The same for machines: hit rates as numbers beside their token counts."""
        fields = asdict(self)
        for name in ("before", "after"):
            rate: HitRate = getattr(self, name)
            fields[name] = {
                "hit_rate": round(rate.hit_rate, 4),
                "cached_tokens": rate.cached_tokens,
                "prompt_tokens": rate.prompt_tokens,
            }
        return fields
