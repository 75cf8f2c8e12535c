"""An event loop whose clock moves instead of waiting, and an engine that computes in its time."""

import asyncio
import selectors
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ragboost.index import ContextIndex
from ragboost.types import Document

PREFILL_TOKENS_PER_S = 20_000
CAPACITY_TOKENS = 400_000


class VirtualTime(selectors.SelectSelector):
    """Selector that advances a virtual clock instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Advance the clock by the timeout; no file is ever ready."""
        assert timeout is not None, "deadlock: no timer is pending"
        self.now += max(0.0, timeout)
        return []


@contextmanager
def virtual_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Make an event loop with a virtual clock the current one."""
    selector = VirtualTime()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    asyncio.set_event_loop(loop)
    try:
        yield loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@dataclass
class VirtualEngine:
    """An engine with a prefix cache of whole documents, which counts the tokens of its prompts."""

    lanes: int  # prompts computed concurrently; they share the prefill rate
    capacity_tokens: int = CAPACITY_TOKENS
    cache: ContextIndex = field(init=False)
    cached_tokens: int = 0
    prompt_tokens: int = 0

    def __post_init__(self) -> None:
        self.cache = ContextIndex(capacity_tokens=self.capacity_tokens)
        self._lanes = asyncio.Semaphore(self.lanes)

    async def prefill(self, documents: Sequence[Document], tokens: Sequence[int]) -> None:
        """Prefill a prompt; the cache is searched when it is scheduled, as in real engines."""
        keys = [document.key for document in documents]
        async with self._lanes:
            cached = self.cache.cached_prefix(keys).cached_tokens
            todo = sum(tokens) - cached
            await asyncio.sleep(todo * self.lanes / PREFILL_TOKENS_PER_S)
            self.cache.insert(keys, tokens)
        self.cached_tokens += cached
        self.prompt_tokens += sum(tokens)
