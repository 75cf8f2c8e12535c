"""Send and receive messages of replicas on a Redis publish/subscribe channel.

The latest ones may be kept in a stream for processes that start. Without the server nothing is
heard, and it is tried again until `close`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ragboost.config import SessionSettings
from ragboost.errors import import_extra
from ragboost.sessions.redis import make_client

logger = logging.getLogger(__name__)

_RETRY_S = 1.0
_POLL_S = 1.0  # below the client's timeout, which an idle channel would exceed
_KEPT_S = 600  # what is older has been used again since, or is not cached any more
_MAX_KEPT_BYTES = 64 * 1024  # of a message that is kept
_PER_READ = 20
_FIELD = b"message"


class RedisChannel:
    """One process's side of a channel. Never fails.

    Args:
        settings: of the Redis server.
        name: of the channel.
        what: is exchanged, for the log.
        interval_s: between two calls of `produce`.
        produce: returns the next messages.
        on_message: called with every message, this process's own included.
        num_kept: latest messages that the server keeps, under the name of the channel, for ten
            minutes; a process hears them when it starts. Those above 64 KiB are not kept.

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
        produce: Callable[[], Sequence[bytes]],
        on_message: Callable[[bytes], None],
        num_kept: int = 0,
    ) -> None:
        self.problem: str | None = None
        self._name = name
        self._what = what
        self._interval_s = interval_s
        self._produce = produce
        self._on_message = on_message
        self._num_kept = num_kept
        self._has_read_kept = not num_kept
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
            for message in self._produce():
                await self._send(message)
                if self.problem is not None:
                    self.problem = None
                    logger.info("replicas hear of each other's %s again", self._what)
            await asyncio.sleep(self._interval_s)

    async def _send(self, message: bytes) -> None:
        if not self._num_kept or len(message) > _MAX_KEPT_BYTES:
            await self._client.publish(self._name, message)
            return
        commands = self._client.pipeline(transaction=False)
        commands.publish(self._name, message)
        commands.xadd(self._name, {_FIELD: message}, maxlen=self._num_kept)
        commands.expire(self._name, _KEPT_S)
        await commands.execute()

    async def _subscribe(self) -> None:
        async with self._client.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(self._name)
            if not self._has_read_kept:
                self._has_read_kept = True
                await self._try_to_read_kept()
            while True:
                message = await channel.get_message(timeout=_POLL_S)
                if message is not None:
                    self._on_message(message["data"])

    async def _try_to_read_kept(self) -> None:
        try:
            await self._read_kept()
        except self._errors as error:  # new messages are heard all the same
            logger.warning("the %s that replicas told before are lost: %s", self._what, error)

    async def _read_kept(self) -> None:
        """Handle the messages of before, oldest first, by the server's clock."""
        now, _ = await self._client.time()
        begin, end = str((now - _KEPT_S) * 1000), str((now + 1) * 1000)
        while kept := await self._client.xrange(self._name, begin, end, count=_PER_READ):
            for _, fields in kept:
                self._on_message(fields.get(_FIELD, b""))
                await asyncio.sleep(0)
            begin = "(" + kept[-1][0].decode()
