"""Manual clock of an event loop, so that tests control when timers fire."""

import asyncio

from tests.eventually import run_event_loop


class LoopClock:
    """Manual time of the running event loop, which only `advance` moves. Sockets work as usual."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time()
        self._loop.time = lambda: self._now  # type: ignore[method-assign]

    async def advance(self, seconds: float) -> None:
        """Run ready tasks, advance the time by `seconds`, and run the timers then due."""
        await run_event_loop()
        self._now += seconds
        await run_event_loop()
