"""Send and receive messages of replicas on a Redis publish/subscribe channel.

Nothing is stored. Without the server nothing is heard, and it is tried again until `close`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ragboost.config import SessionSettings
from ragboost.errors import import_extra
from ragboost.sessions.redis import make_client

logger = logging.getLogger(__name__)

_RETRY_S = 1.0
_POLL_S = 1.0  # below the client's timeout, which an idle channel would exceed


class RedisChannel:
    """One process's side of a channel. Never fails.

    Args:
        settings: of the Redis server.
        name: of the channel.
        what: is exchanged, for the log.
        interval_s: between two messages.
        produce: returns the next message; None: there is nothing to say.
        on_message: called with every message, this process's own included.

    Raises:
        ConfigError: the URL is missing or invalid.
        MissingExtraError: the client is not installed.

    Attributes:
        problem: the last failure; None while it works.
    """

    def __init__(
        self,
        settings: SessionSettings,
        name: str,
        *,
        what: str,
        interval_s: float,
        produce: Callable[[], bytes | None],
        on_message: Callable[[bytes], None],
    ) -> None:
        self.problem: str | None = None
        self._name = name
        self._what = what
        self._interval_s = interval_s
        self._produce = produce
        self._on_message = on_message
        self._client: Any = make_client(settings)
        self._errors = (import_extra("redis.exceptions", extra="redis").RedisError, OSError)
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Begin, without waiting for the server."""
        for work, name in ((self._publish, "telling"), (self._subscribe, "hearing")):
            task = asyncio.create_task(self._repeat(work), name=f"{name} replicas: {self._what}")
            self._tasks.append(task)

    async def close(self) -> None:
        """Stop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except self._errors as error:
                if self.problem is None:
                    logger.warning("replicas do not hear of each other's %s: %s", self._what, error)
                self.problem = str(error)
            await asyncio.sleep(_RETRY_S)

    async def _publish(self) -> None:
        while True:
            message = self._produce()
            if message is not None:
                await self._client.publish(self._name, message)
                if self.problem is not None:
                    self.problem = None
                    logger.info("replicas hear of each other's %s again", self._what)
            await asyncio.sleep(self._interval_s)

    async def _subscribe(self) -> None:
        async with self._client.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(self._name)
            while True:
                message = await channel.get_message(timeout=_POLL_S)
                if message is not None:
                    self._on_message(message["data"])
