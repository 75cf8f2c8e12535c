"""Let an API server tell the engine's process which stored chunks a request will need, so that they
are loaded before its scheduler sees it, and which to keep or remove. Travels by a socket in the
user's temporary directory, like reports. Does not know requests."""

import logging
import os
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import zmq

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.request import (
    MIN_CHUNK_TOKENS,
    PromptReport,
    TokenOrigins,
    namespaced,
)
from ragboost.chunk_cache.http.reports import (
    ReplyTo,
    ReportSender,
    connect_to_inbox,
    inbox_address,
    send_to_inbox,
)
from ragboost.chunk_cache.http.store_commands import StoreCommand, Token, run_command
from ragboost.chunk_cache.store.keys import PUBLIC, owner_prefix, place_of
from ragboost.chunk_cache.store.tiered import TieredStore

logger = logging.getLogger(__name__)

_MAX_BYTES = 64 << 20
_MAX_QUEUED = 256
_MAX_PENDING = 1024
_MAX_PINNING = 64
_LOOK_AGAIN_MS, _IDLE_MS = 2, 200


class Announcement(msgspec.Struct, frozen=True, tag="chunks"):
    chunks: list[list[Token]]  # token ids of each
    reply_to: ReplyTo  # who waits until the chunks are loaded
    tenant: str = ""  # as in the request's plan
    namespace: list[str | None] = []  # what keeps it apart in the engine's prefix cache


class _Pending(NamedTuple):
    keys: list[str]
    reply_to: ReplyTo


class AnnouncementInbox:
    """Loads announced chunks, in a thread of the engine's process, and answers with an empty report
    once they are in memory, or waiting is not worth it. `library` returns the present one."""

    def __init__(self, engine: str, *, rank: int, library: Callable[[], ChunkLibrary]) -> None:
        self._library, self._has_closed = library, threading.Event()
        self._to_pin, self._pinning = deque[str](), list[str]()
        if library().has_public:  # stored before the last end
            self._to_pin.extend(sorted(library().store.keys(owner_prefix(PUBLIC))))
        self._directory = _directory(engine, rank)
        if self._directory.is_dir() and self._directory.lstat().st_uid == os.getuid():
            shutil.rmtree(self._directory)  # of a process that was killed
        self._directory.mkdir(mode=0o700)
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_BYTES)
        self._socket.setsockopt(zmq.RCVHWM, _MAX_QUEUED)
        self._socket.bind(inbox_address(self._directory))
        self._thread = threading.Thread(target=self._run, name="ragboost-announced", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._has_closed.set()
        self._thread.join()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self) -> None:
        reports, pending = ReportSender(), list[_Pending]()
        while not self._has_closed.is_set():
            if self._socket.poll(_LOOK_AGAIN_MS if pending else _IDLE_MS):
                pending += self._take(self._socket.recv(), reports)
                del pending[:-_MAX_PENDING]
            store = self._library().store
            if self._to_pin:
                self._pin_public(store)
            loading = [each for each in pending if store.is_loading(each.keys)]
            for keys, reply_to in pending:
                if not any(keys is each.keys for each in loading):
                    reports.send(reply_to, PromptReport(TokenOrigins(), None))
            pending = loading
        reports.close()
        self._socket.close()

    def _pin_public(self, store: TieredStore) -> None:
        """Load public chunks to keep, a few at a time: requests load beside them."""
        if not any(map(store.is_on_its_way, self._pinning)):
            count = min(_MAX_PINNING, len(self._to_pin))
            self._pinning = [self._to_pin.popleft() for _ in range(count)]
            store.pin(dict.fromkeys(self._pinning, 0))

    def _take(self, message: bytes, reports: ReportSender) -> list[_Pending]:
        try:
            announced = msgspec.msgpack.decode(message, type=Announcement | StoreCommand)
        except msgspec.MsgspecError as error:
            logger.debug("ignored an announcement of chunks: %s", error)
            return []
        library = self._library()
        if isinstance(announced, StoreCommand):
            reports.send_fields(announced.reply_to, run_command(announced, library))
            return []
        tenant = namespaced(announced.tenant, *announced.namespace)
        keys = {
            key: len(tokens)
            for number, tokens in enumerate(announced.chunks)
            if len(tokens) >= MIN_CHUNK_TOKENS
            for key in library.keys_to_load(library.key(tokens, tenant=tenant), place_of(number))
        }
        library.store.prefetch(keys)
        return [_Pending([*keys], announced.reply_to)]


class Announcer:
    """Announces chunks to each process of an engine; never blocks: what is not taken is lost."""

    def __init__(self, engine: str, *, num_inboxes: int) -> None:
        self._sockets = [connect_to_inbox(_directory(engine, n)) for n in range(num_inboxes)]
        self.num_inboxes = num_inboxes

    def send(
        self,
        chunks: Sequence[Sequence[int]],
        *,
        tenant: str,
        namespace: Sequence[str | None],
        replies_to: Sequence[ReplyTo],
    ) -> None:
        """Announce chunks by their token ids; `replies_to` is where each rank answers."""
        for socket, reply_to in zip(self._sockets, replies_to, strict=True):
            message = Announcement([*map(list, chunks)], reply_to, tenant, [*namespace])
            send_to_inbox(socket, message)

    def command(self, command: StoreCommand) -> None:
        send_to_inbox(self._sockets[0], command)

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()


def _directory(engine: str, rank: int) -> Path:
    return Path(tempfile.gettempdir(), f"ragboost-chunks-{engine}-{rank}")
