"""The prompt caches of hosted providers: how callers mark what they keep, and for how long."""

from collections.abc import Mapping
from typing import NamedTuple


class PromptCache(NamedTuple):
    mark: str  # the field of a block that ends a cached prefix
    ttls: Mapping[str | None, float]  # seconds by the mark's `ttl`; without one first
    lookback: int  # blocks up to a mark, with its own, at which an older prefix is found


PROMPT_CACHES = (
    PromptCache("cache_control", {None: 300.0, "1h": 3600.0}, lookback=20),
    PromptCache("prompt_cache_breakpoint", {None: 1800.0}, lookback=100_000),
)
CACHE_MARKS = tuple(cache.mark for cache in PROMPT_CACHES)
