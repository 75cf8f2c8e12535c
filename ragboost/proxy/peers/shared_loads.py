"""Exchange the load on the backends with replicas of the proxy, over Redis' publish/subscribe.

Nothing is stored: a replica that dies falls silent, and its load is forgotten. Without Redis every
replica knows its own load only.
"""

import asyncio
import logging
from typing import Any

import msgspec

from ragboost.config import SessionSettings
from ragboost.errors import import_extra
from ragboost.proxy.peers.load_board import LoadBoard
from ragboost.proxy.upstream.backends import Load
from ragboost.sessions.redis import make_client

logger = logging.getLogger(__name__)

_CHANNEL = "ragboost:load"
_INTERVAL_S = 0.1
_RETRY_S = 1.0
_POLL_S = 1.0  # below the client's timeout, which an idle channel would exceed
_MAX_BYTES = 256 * 1024  # of a report: thousands of busy backends


class _LoadReport(msgspec.Struct, frozen=True, array_like=True):
    """The loads of one process, by key of the backend."""

    source: str
    loads: dict[str, Load]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_LoadReport)


class SharedLoads:
    """One process's side of the exchange. Never fails: it tries again until it is closed.

    Args:
        settings: of the Redis server.
        board: has this process's loads, and takes the others'.
        name: unique among all processes of all replicas.

    Raises:
        ConfigError: the URL is missing or invalid.
        MissingExtraError: the client is not installed.

    Attributes:
        problem: the last failure; None while it works.
    """

    def __init__(self, settings: SessionSettings, board: LoadBoard, *, name: str) -> None:
        self.problem: str | None = None
        self._board = board
        self._name = name
        self._client: Any = make_client(settings)
        self._errors = (import_extra("redis.exceptions", extra="redis").RedisError, OSError)
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Begin, without waiting for the server."""
        for work, name in ((self._publish, "telling replicas"), (self._subscribe, "hearing them")):
            self._tasks.append(asyncio.create_task(self._repeat(work), name=name))

    async def close(self) -> None:
        """Stop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    async def _repeat(self, work: Any) -> None:
        while True:
            try:
                await work()
            except self._errors as error:
                if self.problem is None:
                    logger.warning("replicas do not hear of each other's load: %s", error)
                self.problem = str(error)
            await asyncio.sleep(_RETRY_S)

    async def _publish(self) -> None:
        was_idle = False
        while True:
            loads = self._board.own()
            if loads or not was_idle:
                report = _LoadReport(self._name, loads)
                await self._client.publish(_CHANNEL, _encoder.encode(report))
                if self.problem is not None:
                    self.problem = None
                    logger.info("replicas hear of each other's load again")
            was_idle = not loads
            await asyncio.sleep(_INTERVAL_S)

    async def _subscribe(self) -> None:
        async with self._client.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(_CHANNEL)
            while True:
                message = await channel.get_message(timeout=_POLL_S)
                if message is not None:
                    self._receive(message["data"])

    def _receive(self, data: bytes) -> None:
        if len(data) > _MAX_BYTES:
            return
        try:
            report = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if report.source != self._name:
            self._board.put(report.source, report.loads)
