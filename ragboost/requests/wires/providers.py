"""The prompt caches of hosted providers: how requests mark what they keep, and for how long.

Prices are settings, and usage stands in the files of the APIs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MarkStyle = Literal["none", "openai", "openai_breakpoints", "anthropic"]
"""Values of `backend.cache_marks`: none, or the style of a prompt cache."""


@dataclass(frozen=True, kw_only=True)
class PromptCache:
    style: MarkStyle
    about: str  # in the reference of settings
    hosts: tuple[str, ...] = ()  # where the provider serves, if all its models take the marks
    key: str = ""  # the field that leads requests with equal values to one machine
    mark: str = ""  # the field of a block that ends a cached prefix
    # Lifetimes in seconds, ascending, with the value of the mark for each.
    ttls: tuple[tuple[float, Mapping[str, str]], ...] = ()
    lookback: int = 0  # blocks up to a mark, with its own, at which an older prefix is found
    marks_all: bool = False  # tools and the system prompt can be marked like messages
    unmarked_types: tuple[str, ...] = ()  # of blocks that take no mark
    # Fields beside the marks, without which the API would mark by itself.
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


PROMPT_CACHES = (
    PromptCache(
        style="anthropic",
        about="up to four cache_control breakpoints where they are expected to pay",
        hosts=("api.anthropic.com",),
        mark="cache_control",
        ttls=((300.0, {"type": "ephemeral"}), (3600.0, {"type": "ephemeral", "ttl": "1h"})),
        lookback=20,
        marks_all=True,
        unmarked_types=("thinking", "redacted_thinking"),
    ),
    PromptCache(
        style="openai_breakpoints",
        about="the same as prompt_cache_breakpoint (GPT-5.6 and later)",
        mark="prompt_cache_breakpoint",
        ttls=((1800.0, {"mode": "explicit"}),),
        lookback=100_000,
        # Without breakpoints, this mode neither writes nor reads.
        options={"prompt_cache_options": {"mode": "explicit"}},
    ),
    PromptCache(
        style="openai",
        about="a prompt_cache_key shared by requests with the same first document",
        key="prompt_cache_key",
    ),
)
CACHE_MARKS = tuple(cache.mark for cache in PROMPT_CACHES if cache.mark)
UNMARKED_TYPES = tuple(kind for cache in PROMPT_CACHES for kind in cache.unmarked_types)
