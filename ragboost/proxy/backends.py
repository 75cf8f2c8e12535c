"""The upstream servers: connections, timeouts, health, and the one retry that is safe.

Knows HTTP. Does not know what a request means, and never looks into a body.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import aiohttp
from aiohttp.abc import AbstractCookieJar
from multidict import CIMultiDict
from yarl import URL

from ragboost.config import BackendSettings, ReplicaSettings, Settings
from ragboost.errors import (
    BackendConnectionError,
    BackendError,
    BackendTimeoutError,
    ConfigError,
)

logger = logging.getLogger(__name__)

_READY_TIMEOUT_S = 2.0
# Below the idle timeout of every server we know (uvicorn: 5 s), so that a pooled connection is
# rarely closed under us.
_KEEPALIVE_S = 3.0
_MAX_FETCHED_BYTES = 4 * 1024 * 1024
_MAX_HEADER_BYTES = 64 * 1024
_NO_AUTO_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


@dataclass(slots=True)
class Attempt:
    """What the HTTP client tells us about one try."""

    is_reused: bool = False


@dataclass(slots=True)
class Load:
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


class BackendRefusedError(BackendConnectionError):
    """No connection at all: the backend cannot have begun, so another one may be tried."""


class Backend:
    """One upstream server. `open` and `close` belong to the event loop that uses it.

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
        self.load = Load()
        self.is_healthy = True
        self.num_failures = 0
        api_key = (replica and replica.api_key) or settings.api_key
        self._api_key = api_key.get_secret_value() if api_key else None
        self.hides_client_keys = False
        self._timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=settings.connect_timeout_s,
            sock_read=settings.read_timeout_s,
        )

    def __repr__(self) -> str:
        return f"Backend({self.url!r})"

    @property
    def has_room(self) -> bool:
        """It may be sent one more completion."""
        return self.max_concurrency is None or self.load.running < self.max_concurrency

    async def open(self) -> None:
        """Create the connection pools."""
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        self._pooled = self._session(
            aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S), traces=[trace]
        )
        # A retry must not meet the next stale connection of the pool.
        self._fresh = self._session(aiohttp.TCPConnector(limit=0, force_close=True), traces=[])

    async def close(self) -> None:
        """Close all connections."""
        await self._pooled.close()
        await self._fresh.close()

    async def request(
        self, method: str, target: str, *, headers: CIMultiDict[str], body: bytes
    ) -> aiohttp.ClientResponse:
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
        attempt = Attempt()
        headers = self.with_key(headers)
        try:
            return await self._send(self._pooled, method, target, headers, body, attempt)
        except aiohttp.ClientConnectorError:
            pass
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if not attempt.is_reused:
                raise self._explain(error) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._explain(error) from error
        try:
            return await self._send(self._fresh, method, target, headers, body, attempt)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._explain(error) from error

    async def is_ready(self) -> bool:
        """Tell whether the backend answers; hosted ones have no `/health`, so 404 is fine."""
        timeout = aiohttp.ClientTimeout(total=_READY_TIMEOUT_S)
        try:
            headers = self.with_key(CIMultiDict())
            async with self._fresh.get(
                f"{self.url}/health", headers=headers, timeout=timeout
            ) as response:
                return response.status < 500
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def fetch(self, path: str, *, body: bytes | None = None) -> bytes | None:
        """Ask for a small answer of the backend's own; None: it cannot be reached. Empty: no 200.

        Args:
            path: what to GET.
            body: JSON to POST instead.
        """
        timeout = aiohttp.ClientTimeout(total=_READY_TIMEOUT_S)
        try:
            headers = self.with_key(CIMultiDict({"content-type": "application/json"}))
            async with self._fresh.request(
                "GET" if body is None else "POST",
                f"{self.url}{path}",
                headers=headers,
                data=body,
                timeout=timeout,
            ) as response:
                if response.status != 200:
                    return b""
                told = bytearray()
                async for chunk in response.content.iter_any():
                    told += chunk
                    if len(told) > _MAX_FETCHED_BYTES:
                        return b""
                return bytes(told)
        except (aiohttp.ClientError, TimeoutError):
            return None

    def with_key(self, headers: CIMultiDict[str]) -> CIMultiDict[str]:
        """The headers with the backend's own key in place of the client's, where it has one."""
        if self._api_key is None and not self.hides_client_keys:
            return headers
        headers = headers.copy()
        if self._api_key is None:
            headers.popall("authorization", None)
            headers.popall("x-api-key", None)
            return headers
        headers["authorization"] = f"Bearer {self._api_key}"
        if "x-api-key" in headers:
            headers["x-api-key"] = self._api_key
        return headers

    def _session(
        self, connector: aiohttp.TCPConnector, *, traces: list[aiohttp.TraceConfig]
    ) -> aiohttp.ClientSession:
        jar: AbstractCookieJar = aiohttp.DummyCookieJar()
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=jar,
            timeout=self._timeout,
            auto_decompress=False,
            trust_env=False,
            skip_auto_headers=_NO_AUTO_HEADERS,
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
            trace_configs=traces,
        )

    async def _send(
        self,
        session: aiohttp.ClientSession,
        method: str,
        target: str,
        headers: CIMultiDict[str],
        body: bytes,
        attempt: Attempt,
    ) -> aiohttp.ClientResponse:
        return await session.request(
            method,
            URL(self.url + target, encoded=True),
            headers=headers,
            data=body or None,
            allow_redirects=False,
            trace_request_ctx=attempt,
        )

    def _explain(self, error: Exception) -> BackendError:
        if isinstance(error, TimeoutError):
            return BackendTimeoutError(f"the backend at {self.url} did not answer in time: {error}")
        kind = BackendConnectionError
        if isinstance(error, aiohttp.ClientConnectorError):
            kind = BackendRefusedError
        return kind(f"no answer from the backend at {self.url}: {error or type(error).__name__}")


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

    async def open(self) -> None:
        """Open every backend, and watch several of them."""
        for backend in self.all:
            await backend.open()
        watched = self.all if len(self.all) > 1 else ()
        self._checks = [asyncio.create_task(self._watch(backend)) for backend in watched]

    async def close(self) -> None:
        """Close every backend."""
        for check in self._checks:
            check.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)
        for backend in self.all:
            await backend.close()

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


async def _note_reuse(
    _session: aiohttp.ClientSession,
    trace: SimpleNamespace,
    _params: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    trace.trace_request_ctx.is_reused = True
