"""Exchange the load on the backends with replicas of the proxy, over Redis' publish/subscribe.

A replica that dies falls silent, and its load is forgotten. Without Redis every replica knows its
own load only.
"""

from collections.abc import Sequence

import msgspec

from ragboost.config import SessionSettings
from ragboost.proxy.peers.load_board import LoadBoard
from ragboost.proxy.peers.messages import NO_MESSAGE
from ragboost.proxy.peers.redis_channel import RedisChannel
from ragboost.proxy.upstream.backends import Load

_CHANNEL = "ragboost:load"
_INTERVAL_S = 0.1
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
        channel: to the others.
    """

    def __init__(self, settings: SessionSettings, board: LoadBoard, *, name: str) -> None:
        self._board = board
        self._name = name
        self._was_idle = False
        self.channel = RedisChannel(
            settings,
            _CHANNEL,
            what="load",
            interval_s=_INTERVAL_S,
            produce=self._report,
            on_message=self._receive,
        )

    async def open(self) -> None:
        """Begin, without waiting for the server."""
        await self.channel.open()

    async def close(self) -> None:
        """Stop."""
        await self.channel.close()

    def _report(self) -> Sequence[bytes]:
        """Return the loads in a message; none if they were zero the last time as well."""
        loads = self._board.own()
        is_news = bool(loads) or not self._was_idle
        self._was_idle = not loads
        return [_encoder.encode(_LoadReport(self._name, loads))] if is_news else ()

    def _receive(self, data: bytes) -> None:
        if len(data) > _MAX_BYTES:
            return
        try:
            report = _decoder.decode(data)
        except NO_MESSAGE:
            return
        if report.source != self._name:
            self._board.put(report.source, report.loads)
