"""The upstream servers: connections, timeouts, and the one retry that is safe.

Knows HTTP. Does not know what a request means, and never looks into a body.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp
from aiohttp.abc import AbstractCookieJar
from multidict import CIMultiDict
from yarl import URL

from ragboost.config import BackendSettings
from ragboost.errors import BackendConnectionError, BackendError, BackendTimeoutError

_READY_TIMEOUT_S = 2.0
# Below the idle timeout of every server we know (uvicorn: 5 s), so that a pooled connection is
# rarely closed under us.
_KEEPALIVE_S = 3.0
_MAX_HEADER_BYTES = 64 * 1024
_NO_AUTO_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


@dataclass(slots=True)
class Attempt:
    """What the HTTP client tells us about one try."""

    is_reused: bool = False


class Backend:
    """One upstream server. `open` and `close` belong to the event loop that uses it.

    Attributes:
        url: base URL, without `/v1` and without a slash at the end.
    """

    def __init__(self, settings: BackendSettings) -> None:
        self.url = settings.url.rstrip("/").removesuffix("/v1")
        self._timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=settings.connect_timeout_s,
            sock_read=settings.read_timeout_s,
        )

    def __repr__(self) -> str:
        return f"Backend({self.url!r})"

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
            headers: complete, except for host and length.
            body: may be empty.

        Raises:
            BackendConnectionError: no connection, or it broke before the response began.
            BackendTimeoutError: no connection or no response in time.
        """
        attempt = Attempt()
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
            async with self._fresh.get(f"{self.url}/health", timeout=timeout) as response:
                return response.status < 500
        except (aiohttp.ClientError, TimeoutError):
            return False

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
        return BackendConnectionError(
            f"no answer from the backend at {self.url}: {error or type(error).__name__}"
        )


class Backends:
    """The upstream servers, and the choice between them."""

    def __init__(self, backends: list[Backend]) -> None:
        self._backends = backends

    async def open(self) -> None:
        """Open every backend."""
        for backend in self._backends:
            await backend.open()

    async def close(self) -> None:
        """Close every backend."""
        for backend in self._backends:
            await backend.close()

    def choose(self) -> Backend:
        """Pick the backend for a request."""
        return self._backends[0]

    async def is_ready(self) -> bool:
        """Tell whether any backend can be reached."""
        for backend in self._backends:
            if await backend.is_ready():
                return True
        return False


async def _note_reuse(
    _session: aiohttp.ClientSession,
    trace: SimpleNamespace,
    _params: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    trace.trace_request_ctx.is_reused = True
