"""A clock for an event loop, so that a test decides when a timer is due."""

import asyncio

from tests.eventually import run_event_loop


class LoopClock:
    """The time of the running event loop; it moves by `advance` alone. Sockets work as ever."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time()
        self._loop.time = lambda: self._now  # type: ignore[method-assign]

    async def advance(self, seconds: float) -> None:
        """Run what is ready, let so many seconds pass, and run what is due then."""
        await run_event_loop()
        self._now += seconds
        await run_event_loop()
