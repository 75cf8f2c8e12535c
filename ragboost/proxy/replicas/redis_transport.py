"""Carry the messages of replicas over a Redis channel: their loads, and the prompts they have sent.

Without the server nothing is heard, and it is tried again until `close`. Sending never waits.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from ragboost.booster.tenants import bounded_name
from ragboost.config import SessionSettings
from ragboost.proxy.replicas.messages import (
    MessageHandler,
    PromptQueue,
    ReplicaMessage,
    decode,
    encode,
)
from ragboost.proxy.sessions.redis import make_client
from ragboost.util.redis_client import redis_errors

logger = logging.getLogger(__name__)

_INTERVAL_S = 0.05
_LOAD_EVERY = 2  # intervals
_RETRY_S = 1.0
_POLL_S = 1.0  # below the client's timeout, which an idle channel would exceed
_MAX_BYTES = 1024 * 1024  # of a message that is heard
_MAX_REPLY_BYTES = 16 * 1024 * 1024  # more ends the connection
_MAX_WAITING, _MAX_DOCUMENTS = 2_000, 200_000  # the server is slow, or away
# Decoding a message takes a few milliseconds; a single prompt may have more documents.
_PER_MESSAGE, _DOCUMENTS_PER_MESSAGE = 200, 600
_MESSAGES_PER_INTERVAL = 5


class RedisTransport:
    """One replica's side of the exchange with others. Never fails."""

    def __init__(self, settings: SessionSettings, handler: MessageHandler) -> None:
        self.problem: str | None = None
        """The last failure; None while it works."""
        self.handler = handler
        self._name = secrets.token_hex(8)
        self._waiting = PromptQueue(max_prompts=_MAX_WAITING, max_documents=_MAX_DOCUMENTS)
        self._was_idle = False
        self._is_closing = False
        self._client: Any = make_client(settings, max_reply_bytes=_MAX_REPLY_BYTES)
        # Unlike keys, channels are the same in all databases.
        database = self._client.get_connection_kwargs().get("db") or 0
        self._channel = f"{settings.prefix}:proxies:{database}"
        self._errors = redis_errors()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        self.handler.watch(self._waiting.add)
        await self.handler.open()
        for work, name in ((self._publish, "telling"), (self._subscribe, "hearing")):
            self._tasks.append(asyncio.create_task(self._repeat(work), name=f"{name} replicas"))

    async def close(self) -> None:
        self._is_closing = True  # the client may swallow a cancellation that meets an answer
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()
        await self.handler.close()

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        while not self._is_closing:
            try:
                await work()
            except self._errors as error:
                if self.problem is None:
                    logger.warning("replicas do not hear of each other: %.500r", str(error))
                self.problem = type(error).__name__
            await asyncio.sleep(_RETRY_S)

    async def _publish(self) -> None:
        while not self._is_closing:
            for at in range(_LOAD_EVERY):
                for message in self._messages(has_load=at == 0):
                    await self._client.publish(self._channel, encode(message))
                    if self.problem is not None:
                        self.problem = None
                        logger.info("replicas hear of each other again")
                await asyncio.sleep(_INTERVAL_S)

    def _messages(self, *, has_load: bool) -> Iterator[ReplicaMessage]:
        """Return the next messages; a load only if it is not zero as the last one was."""
        if has_load:
            report = self.handler.report()
            if report.loads or not self._was_idle:
                yield ReplicaMessage(self._name, report)
            self._was_idle = not report.loads
        bounds = {"max_prompts": _PER_MESSAGE, "max_documents": _DOCUMENTS_PER_MESSAGE}
        for _ in range(_MESSAGES_PER_INTERVAL):
            if prompts := self._waiting.take(**bounds):
                yield ReplicaMessage(self._name, prompts=prompts)

    async def _subscribe(self) -> None:
        async with self._client.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(self._channel)
            while not self._is_closing:
                message = await channel.get_message(timeout=_POLL_S)
                if message is not None:
                    self._receive(message["data"])

    def _receive(self, data: bytes) -> None:
        message = decode(data) if len(data) <= _MAX_BYTES else None
        if message is None or message.source == self._name:
            return
        if bounded_name(message.source) != message.source:  # no proxy has such a name
            return
        if message.report is not None:
            self.handler.apply(message.source, message.report)
        for prompt in message.prompts:
            self.handler.apply(message.source, prompt)
