"""An engine over HTTP with an exact prefix cache, which takes its time for the rest of a prompt."""

import asyncio

from aiohttp import web

from tests.fakes import FakeEngine
from tests.fakes.engine import Misbehaviour, Received

PREFILL_TOKENS_PER_S = 20_000


class SimulatedEngine(FakeEngine):
    """Computes one prompt at a time, in order of arrival.

    A prompt is in the cache as soon as it has arrived: of two that share a prefix, the second finds
    what the first is about to compute.
    """

    def __init__(self, *, capacity_tokens: int) -> None:
        super().__init__(capacity_tokens=capacity_tokens, events=True, reply_tokens=8)
        self._computing = asyncio.Lock()

    def clear_cache(self) -> None:
        self.cache.clear()

    async def _respond(
        self, request: web.Request, received: Received, behaviour: Misbehaviour
    ) -> web.StreamResponse:
        async with self._computing:
            computed = received.prompt_tokens - received.cached_tokens
            await asyncio.sleep(computed / PREFILL_TOKENS_PER_S)
        return await super()._respond(request, received, behaviour)
