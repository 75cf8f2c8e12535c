"""Carry what the engine did with a prompt from its process to the API server's.

A streamed response has no field for it, so that it takes a socket of its own, in a directory that
only this user can open. The engine takes names of such directories, never addresses.
"""

import asyncio
import logging
import re
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

import msgspec
import zmq
import zmq.asyncio

from ragboost.bounded_map import BoundedMap
from ragboost.chunk_cache.http.usage import TokenOrigins

logger = logging.getLogger(__name__)

_PREFIX = "ragboost-"
_NAME = re.compile(r"ragboost-[A-Za-z0-9_]{8}")
_WAITING = 65_536
_MAX_SENDERS = 64
_QUEUED = 1_000
_MAX_BYTES = 4096
_ReplyTo = tuple[str, Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]]


class ReplyInbox:
    """Receives reports of the engine, by the request's number. Belongs to one event loop.

    Attributes:
        name: tells the engine where to send reports to.
    """

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self.name = self._directory.name
        self._socket: zmq.asyncio.Socket = zmq.asyncio.Context.instance().socket(zmq.PULL)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_BYTES)
        self._socket.bind(_address(self.name))
        self._waiting: BoundedMap[int, asyncio.Future[TokenOrigins]] = BoundedMap(
            max_entries=_WAITING
        )
        self._next = 0
        self._task = asyncio.create_task(self._receive())

    @property
    def num_expected(self) -> int:
        """Requests whose reports are expected."""
        return len(self._waiting)

    def expect(self) -> int:
        """Return a number for a request whose report will be asked for."""
        self._next += 1
        self._waiting.put(self._next, asyncio.get_running_loop().create_future())
        return self._next

    async def take(self, number: int, *, timeout_s: float) -> TokenOrigins | None:
        """Return the report of a request, or None if it does not come in time."""
        future = self._waiting.peek(number)
        if future is None:
            return None
        await asyncio.wait([future], timeout=timeout_s)
        return future.result() if future.done() else None

    def forget(self, number: int) -> None:
        """Drop the report of a request."""
        self._waiting.pop(number)

    def close(self) -> None:
        """Stop receiving and remove the socket."""
        self._task.cancel()
        self._socket.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _receive(self) -> None:
        while True:
            try:
                number, told = msgspec.msgpack.decode(
                    await self._socket.recv(), type=tuple[int, dict[str, Any]]
                )
            except msgspec.MsgspecError:
                continue
            origins, future = TokenOrigins.read(told), self._waiting.peek(number)
            if origins is not None and future is not None and not future.done():
                future.set_result(origins)


class ReplySender:
    """Sends reports from the engine's process; never blocks it: a full queue drops them."""

    def __init__(self) -> None:
        self._sockets: BoundedMap[str, zmq.Socket[bytes]] = BoundedMap(max_entries=_MAX_SENDERS)

    def send(self, reply_to: Any, report: dict[str, Any]) -> None:
        """Send a report.

        Args:
            reply_to: `[name, number]` of the request's inbox; anything else is ignored.
            report: see `TokenOrigins`.
        """
        try:
            name, number = msgspec.convert(reply_to, _ReplyTo)
        except msgspec.ValidationError:
            return
        if not _NAME.fullmatch(name) or not Path(tempfile.gettempdir(), name).is_dir():
            return
        try:
            socket = self._sockets.get(name) or self._connect(name)
            socket.send(msgspec.msgpack.encode((number, report)), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            logger.debug("the API server does not take reports of chunk reuse: %s", error)

    def _connect(self, name: str) -> "zmq.Socket[bytes]":
        if len(self._sockets) >= _MAX_SENDERS:
            self._drop_oldest()
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        self._sockets.put(name, socket)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, _QUEUED)
        socket.connect(_address(name))
        return socket

    def _drop_oldest(self) -> None:
        socket = self._sockets.pop(next(iter(self._sockets)))
        if socket is not None:
            socket.close()

    def close(self) -> None:
        """Close the sockets; what they have not sent is lost."""
        for socket in self._sockets.values():
            socket.close()


def _address(name: str) -> str:
    return f"ipc://{Path(tempfile.gettempdir(), name, 'replies')}"
