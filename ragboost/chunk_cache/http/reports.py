"""Tell the API server's process what the engine's process knows: why chunks cannot be reused, in a
file named after the engine, and what was reused in each prompt, by a socket, since a stream has no
field for it. Both are in the user's temporary directory, and nobody else can open them."""

import asyncio
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import zmq
import zmq.asyncio

from ragboost.chunk_cache.core.request import PromptReport
from ragboost.errors import RagBoostError
from ragboost.util.bounded_map import BoundedMap

logger = logging.getLogger(__name__)

STARTING = "the engine has not checked itself yet"
_ENGINE = re.compile(r"[A-Za-z0-9-]{1,64}")
_PREFIX = "ragboost-"
_INBOX = re.compile(r"ragboost-[A-Za-z0-9_]{8}")
_MAX_EXPECTED = 65_536
_MAX_SENDERS = 64
_MAX_QUEUED = 1_000
_MAX_BYTES = 1 << 20
ReplyTo = tuple[str, Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]]
"""Name of an inbox, and a ticket there."""


def start_failure(error: Exception) -> str:
    if isinstance(error, RagBoostError):
        return f"self_test: {error}"
    return f"engine_internals: {type(error).__name__}: {error}"


def write_status(engine: str, refusal: str | None) -> None:
    """Publish why an engine cannot reuse chunks; None: it can."""
    path = _status_path(engine)
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), "wb") as file:
        file.write(msgspec.json.encode({"refusal": refusal}))


def remove_status(engine: str) -> None:
    _status_path(engine).unlink(missing_ok=True)


def read_status(engine: str) -> str | None:
    path = _status_path(engine)
    try:
        if path.lstat().st_uid != os.getuid():
            return f"{path.name} belongs to another user"
        status = msgspec.json.decode(path.read_bytes(), type=dict[str, str | None])
    except (OSError, msgspec.DecodeError):
        return STARTING
    return status.get("refusal")


def _status_path(engine: str) -> Path:
    if not _ENGINE.fullmatch(engine):
        raise ValueError(f"not the name of an engine: {engine!r}")
    return Path(tempfile.gettempdir(), f"ragboost-engine-{engine}.json")


class ReportInbox:
    """Receives reports of the engine on prompts. Belongs to one event loop."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self.name = self._directory.name  # tells the engine where to send reports to
        self._socket: zmq.asyncio.Socket = zmq.asyncio.Context.instance().socket(zmq.PULL)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_BYTES)
        self._socket.bind(inbox_address(self._directory))
        self._expected: BoundedMap[int, asyncio.Future[dict[str, Any]]] = BoundedMap(
            max_entries=_MAX_EXPECTED
        )
        self._last_ticket = 0
        self._task = asyncio.create_task(self._receive())

    def expect(self) -> int:
        """Return a ticket for a request whose report will be asked for."""
        self._last_ticket += 1
        self._expected.put(self._last_ticket, asyncio.get_running_loop().create_future())
        return self._last_ticket

    async def take(self, ticket: int, *, timeout_s: float) -> PromptReport | None:
        fields = await self.take_fields(ticket, timeout_s=timeout_s)
        return None if fields is None else PromptReport.read(fields)

    async def take_fields(self, ticket: int, *, timeout_s: float) -> dict[str, Any] | None:
        """Return an answer of the engine, or None if it does not come in time."""
        future = self._expected.peek(ticket)
        if future is None:
            return None
        await asyncio.wait([future], timeout=timeout_s)
        return future.result() if future.done() else None

    def forget(self, ticket: int) -> None:
        self._expected.pop(ticket)

    def close(self) -> None:
        self._task.cancel()
        self._socket.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _receive(self) -> None:
        while True:
            try:
                ticket, fields = msgspec.msgpack.decode(
                    await self._socket.recv(), type=tuple[int, dict[str, Any]]
                )
            except msgspec.MsgspecError:
                continue
            future = self._expected.peek(ticket)
            if future is not None and not future.done():
                future.set_result(fields)


class ReportSender:
    """Sends reports from the engine's process; never blocks it: a full queue drops them."""

    def __init__(self) -> None:
        self._sockets: BoundedMap[str, zmq.Socket[bytes]] = BoundedMap(max_entries=_MAX_SENDERS)

    def send(self, reply_to: Any, report: PromptReport) -> None:
        """Send a report to `[name, ticket]` of an inbox; anything else is ignored."""
        self.send_fields(reply_to, report.fields)

    def send_fields(self, reply_to: Any, fields: Mapping[str, Any]) -> None:
        try:
            name, ticket = msgspec.convert(reply_to, ReplyTo)
        except msgspec.ValidationError:
            return
        if not _INBOX.fullmatch(name) or not Path(tempfile.gettempdir(), name).is_dir():
            return
        socket = self._sockets.get(name)
        if socket is None:
            if len(self._sockets) >= _MAX_SENDERS:
                oldest = self._sockets.pop(next(iter(self._sockets)))
                if oldest is not None:
                    oldest.close()
            socket = connect_to_inbox(Path(tempfile.gettempdir(), name))
            self._sockets.put(name, socket)
        send_to_inbox(socket, (ticket, fields))

    def close(self) -> None:
        for socket in self._sockets.values():
            socket.close()


def inbox_address(directory: Path) -> str:
    return f"ipc://{directory / 'inbox'}"


def connect_to_inbox(directory: Path) -> "zmq.Socket[bytes]":
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, _MAX_QUEUED)
    with suppress(zmq.ZMQError):  # its name is too long; then nothing is sent
        socket.connect(inbox_address(directory))
    return socket


def send_to_inbox(socket: "zmq.Socket[bytes]", message: object) -> None:
    try:
        socket.send(msgspec.msgpack.encode(message), zmq.NOBLOCK)
    except zmq.ZMQError as error:
        logger.debug("another process does not take messages about chunks: %s", error)
