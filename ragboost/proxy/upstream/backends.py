"""The upstream servers: connections, timeouts, health, and the one retry that is safe.

Knows HTTP. Does not know what a request means, and never looks into a body.
"""

import asyncio
import logging
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from ragboost.config import BackendSettings, ReplicaSettings, Settings
from ragboost.errors import (
    BackendConnectionError,
    BackendError,
    BackendTimeoutError,
    ConfigError,
)
from ragboost.proxy.upstream.client import (
    BackendRefusedError,
    Connections,
    Response,
    StaleConnectionError,
)
from ragboost.rewriting.headers import RawHeaders

logger = logging.getLogger(__name__)

_READY_TIMEOUT_S = 2.0
_MAX_FETCHED_BYTES = 4 * 1024 * 1024
_WITHOUT_BODY = ("GET", "HEAD", "OPTIONS", "TRACE")
_KEY_HEADERS = (b"authorization", b"x-api-key")


@dataclass(slots=True)
class BackendLoad:
    """What a backend is doing, from the dispatch of a request to the end of its answer.

    Attributes:
        running: requests sent and not yet answered to the end.
        assigned: the same with those that are to be sent as soon as it has room.
        prefill_tokens: of all assigned ones before their first byte, what has to be computed.
        dispatched: requests ever assigned; breaks ties.
    """

    running: int = 0
    assigned: int = 0
    prefill_tokens: int = 0
    dispatched: int = 0


class Backend:
    """One upstream server. `request` and `close` belong to the event loop that uses it.

    Attributes:
        url: base URL, without `/v1` and without a slash at the end.
        name: in headers, metrics and logs; unique among the backends.
        max_concurrency: completions that may run on it at a time; None: unbounded.
        load: what it is doing.
        is_healthy: it gets requests; `Backends` decides that.
        num_failures: connection failures in a row.
        hides_client_keys: clients show keys of ours, which are not for the backend.
    """

    def __init__(self, settings: BackendSettings, replica: ReplicaSettings | None = None) -> None:
        self.url = (replica or settings).url.rstrip("/").removesuffix("/v1")
        self.name = (replica and replica.name) or self.url.partition("://")[2]
        self.max_concurrency = (replica and replica.max_concurrency) or settings.max_concurrency
        self.load = BackendLoad()
        self.is_healthy = True
        self.num_failures = 0
        api_key = (replica and replica.api_key) or settings.api_key
        self._api_key = api_key.get_secret_value() if api_key else None
        self.hides_client_keys = False
        address = urlsplit(self.url)
        self._path = address.path
        self._host = address.netloc.rpartition("@")[2].encode()
        self._login = _basic(address.username, address.password)
        self._connections = Connections(
            self.url,
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.read_timeout_s,
        )

    def __repr__(self) -> str:
        return f"Backend({self.url!r})"

    @property
    def has_room(self) -> bool:
        """It may be sent one more completion."""
        return self.max_concurrency is None or self.load.running < self.max_concurrency

    def close(self) -> None:
        """Close all idle connections."""
        self._connections.close()

    async def request(
        self, method: str, target: str, *, headers: RawHeaders, body: bytes = b""
    ) -> Response:
        """Send a request and return the response with its body unread.

        Tries again once, on a new connection, where the backend cannot have begun to work: the
        connection was refused, or a pooled connection turned out to be closed.

        Args:
            method: in upper case.
            target: path and query, encoded as the client sent them.
            headers: complete, except for host, length and the backend's own key.
            body: may be empty.

        Raises:
            BackendRefusedError: no connection; nothing was sent.
            BackendConnectionError: no connection, or it broke before the response began.
            BackendTimeoutError: no connection or no response in time.
        """
        head = self._head(method, target, self.with_key(headers), len(body))
        is_head_request = method == "HEAD"
        connection = self._connections.take()
        if connection is not None:
            try:
                return await connection.exchange(head, body, is_head_request=is_head_request)
            except StaleConnectionError:
                pass
        try:
            connection = await self._connections.connect()
        except BackendRefusedError:
            connection = await self._connections.connect()
        return await connection.exchange(head, body, is_head_request=is_head_request)

    async def is_ready(self) -> bool:
        """Tell whether the backend answers; hosted ones have no `/health`, so 404 is fine."""
        try:
            status, _ = await self.ask("/health")
        except BackendError:
            return False
        return status < 500

    async def fetch(self, path: str, *, body: bytes | None = None) -> bytes | None:
        """Ask for a small answer of the backend's own; None: it cannot be reached. Empty: no 200.

        Args:
            path: what to GET.
            body: JSON to POST instead.
        """
        try:
            status, told = await self.ask(path, body=body)
        except BackendError:
            return None
        return told if status == 200 else b""

    async def ask(
        self, path: str, *, body: bytes | None = None, timeout_s: float = _READY_TIMEOUT_S
    ) -> tuple[int, bytes]:
        """Ask a question of our own, on a connection of its own; returns status and body.

        Args:
            path: what to GET.
            body: JSON to POST instead.
            timeout_s: for all of it.

        Raises:
            BackendConnectionError, BackendTimeoutError: there is no whole answer.
        """
        method = "GET" if body is None else "POST"
        own = [(b"content-type", b"application/json"), (b"connection", b"close")]
        head = self._head(method, path, self.with_key(own), len(body or b""))
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connections.connect()
                response = await connection.exchange(head, body or b"", is_head_request=False)
                try:
                    return response.status, await _read_small(response)
                finally:
                    response.close()
        except TimeoutError:
            raise BackendTimeoutError(f"no answer within {timeout_s:g} s") from None

    def with_key(self, headers: RawHeaders) -> RawHeaders:
        """The headers with the backend's own key in place of the client's, where it has one."""
        if self._api_key is None and not self.hides_client_keys:
            is_given = self._login is None or any(name == b"authorization" for name, _ in headers)
            return headers if is_given else [*headers, (b"authorization", self._login or b"")]
        shown = {name for name, _ in headers}
        kept = [header for header in headers if header[0] not in _KEY_HEADERS]
        if self._api_key is not None:
            key = self._api_key.encode()
            kept.append((b"authorization", b"Bearer " + key))
            if b"x-api-key" in shown:
                kept.append((b"x-api-key", key))
        return kept

    def _head(self, method: str, target: str, headers: RawHeaders, num_bytes: int) -> bytes:
        """The bytes of a request's head.

        Raises:
            BackendConnectionError: a line break in it would make another request of it.
        """
        lines = [
            b"%b %b HTTP/1.1" % (method.encode(), (self._path + target).encode()),
            b"host: " + self._host,
        ]
        lines.extend([b"%b: %b" % header for header in headers])
        if num_bytes or method not in _WITHOUT_BODY:
            lines.append(b"content-length: %d" % num_bytes)
        head = b"\r\n".join(lines)
        if head.count(b"\n") >= len(lines) or head.count(b"\r") >= len(lines):
            raise BackendConnectionError("a header of the request has a line break")
        return head + b"\r\n\r\n"


def _basic(name: str | None, password: str | None) -> bytes | None:
    """What a URL with a user says in `authorization`."""
    if name is None:
        return None
    return b"Basic " + b64encode(f"{unquote(name)}:{unquote(password or '')}".encode())


async def _read_small(response: Response) -> bytes:
    """A body; empty if it is too long."""
    told = bytearray()
    while chunk := await response.read():
        told += chunk
        if len(told) > _MAX_FETCHED_BYTES:
            return b""
    return bytes(told)


@dataclass
class Backends:
    """The upstream servers, and which of them get requests.

    Several ones are checked at intervals. One that refuses a connection, fails too often in a row
    or fails its check is left out until a check succeeds.

    Attributes:
        on_down: called with a backend that is left out from now on; its prefix cache is taken to be
            lost.
    """

    all: Sequence[Backend]
    health_interval_s: float = 2.0
    max_failures: int = 3
    on_down: list[Callable[[Backend], None]] = field(default_factory=list)

    @classmethod
    def of(cls, settings: Settings) -> "Backends":
        """The backends that the settings name.

        Raises:
            ConfigError: two have the same name.
        """
        replicas: Sequence[ReplicaSettings | None] = settings.backends or (None,)
        backends = [Backend(settings.backend, replica) for replica in replicas]
        names = [backend.name for backend in backends]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"backends: {twice[0]!r} is there twice; give each a name of its own")
        for backend in backends:
            backend.hides_client_keys = bool(settings.proxy.api_keys)
        router = settings.router
        return cls(backends, router.health_interval_s, router.max_failures)

    def open(self) -> None:
        """Watch several backends."""
        watched = self.all if len(self.all) > 1 else ()
        self._checks = [asyncio.create_task(self._watch(backend)) for backend in watched]

    async def close(self) -> None:
        """Close every backend."""
        for check in self._checks:
            check.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)
        for backend in self.all:
            backend.close()

    def candidates(self, exclude: Sequence[Backend] = ()) -> Sequence[Backend]:
        """The backends to choose from: the healthy ones, or all if none is."""
        left = [backend for backend in self.all if backend not in exclude]
        return [backend for backend in left if backend.is_healthy] or left

    def note_answer(self, backend: Backend) -> None:
        """A backend began to answer."""
        backend.num_failures = 0

    def note_failure(self, backend: Backend, error: BackendError) -> None:
        """A request to a backend failed before an answer began."""
        if isinstance(error, BackendTimeoutError):
            return  # slow is not down
        backend.num_failures += 1
        if isinstance(error, BackendRefusedError) or backend.num_failures >= self.max_failures:
            self._set_healthy(backend, False)

    async def is_ready(self) -> bool:
        """Tell whether any backend can be reached."""
        for backend in self.candidates():
            if await backend.is_ready():
                return True
        return False

    async def _watch(self, backend: Backend) -> None:
        while True:
            await asyncio.sleep(self.health_interval_s)
            num_failures = backend.num_failures
            is_ready = await backend.is_ready()
            if is_ready and backend.num_failures > num_failures:
                continue  # it failed after it had answered the check
            backend.num_failures = 0 if is_ready else backend.num_failures + 1
            if is_ready or backend.num_failures >= self.max_failures:
                self._set_healthy(backend, is_ready)

    def _set_healthy(self, backend: Backend, is_healthy: bool) -> None:
        if backend.is_healthy == is_healthy or len(self.all) == 1:
            return
        backend.is_healthy = is_healthy
        if is_healthy:
            logger.info("backend %s is back", backend.name)
            return
        logger.warning("backend %s is left out until it is healthy", backend.name)
        for call in self.on_down:
            call(backend)
