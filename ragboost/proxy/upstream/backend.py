"""One upstream server: requests to it, the one safe retry, and its load."""

import asyncio
import logging
from base64 import b64encode
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from ragboost.config import BackendSettings, ReplicaSettings
from ragboost.config.proxy import public_url
from ragboost.errors import (
    BackendConnectionError,
    BackendError,
    BackendRefusedError,
    BackendTimeoutError,
    StaleConnectionError,
)
from ragboost.proxy.upstream.client import HttpClient, UpstreamResponse
from ragboost.requests.headers import CREDENTIALS, RawHeaders

logger = logging.getLogger(__name__)

_MIN_REQUESTS = 60
_MIN_TOKENS = 4096  # predicted of these together
_MIN_PREDICTED = 128  # of a request; the blocks of some engines have so many tokens


class CacheWitness:
    """Tell from a backend's usage if it has a prefix cache.

    Args:
        name: of the backend, for the log.
    """

    def __init__(self, name: str) -> None:
        self.is_absent = False
        self._name = name
        self._num_requests = self._num_tokens = 0  # with a prediction, since the last hit

    def note(self, *, predicted: int, cached: int) -> None:
        """Note a response that reports cached tokens, of which so many were predicted."""
        if cached > 0:
            if self.is_absent:
                logger.info("backend %s reports cached tokens again", self._name)
            self.is_absent = False
            self._num_requests = self._num_tokens = 0
        elif predicted >= _MIN_PREDICTED and not self.is_absent:
            self._num_requests += 1
            self._num_tokens += predicted
            if self._num_requests >= _MIN_REQUESTS and self._num_tokens >= _MIN_TOKENS:
                self.is_absent = True
                logger.warning(
                    "backend %s reported no cached token in %d responses, of which %d tokens were "
                    "predicted: its prefix cache is off, or its model has none; nothing is "
                    "predicted for it until it reports a hit (run `ragboost doctor`)",
                    self._name,
                    self._num_requests,
                    self._num_tokens,
                )


_READY_TIMEOUT_S = 2.0
_MAX_FETCHED_BYTES = 4 * 1024 * 1024
_WITHOUT_BODY = ("GET", "HEAD", "OPTIONS", "TRACE")
_IDEMPOTENT = ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE")  # RFC 9110 section 9.2.2
_RANK_HEADER = b"x-data-parallel-rank"


class Load(msgspec.Struct, array_like=True):
    """Counts of a backend's requests, from their assignment to the end of their responses."""

    running: int = 0  # requests sent whose responses have not ended
    assigned: int = 0  # running requests and those that wait for the backend to have room
    # Prompt tokens to be computed for assigned requests without a first byte.
    prefill_tokens: int = 0


class Problem(NamedTuple):
    reason: str  # without addresses
    is_certain: bool = False  # it refuses; anything else may have been chance


class Backend:
    """One upstream server, or one data-parallel rank of its engine; used on one event loop."""

    def __init__(
        self,
        settings: BackendSettings,
        replica: ReplicaSettings | None = None,
        *,
        rank: int | None = None,
    ) -> None:
        configured = (replica or settings).url
        # Base URL, without `/v1`, a slash at the end, user and password: it may be shown.
        self.url = public_url(configured)
        # In headers, metrics and logs; unique among the backends. Ends with `#RANK` for a rank.
        self.name = (replica and replica.name) or self.url.partition("://")[2]
        self.server = self.name  # the same for all ranks
        # Of the engine's data-parallel ranks, each with a prefix cache of its own; None: the engine
        # has one, or chooses by itself.
        self.rank = rank
        if rank is not None:
            self.name += f"#{rank}"
        self.max_concurrency = (replica and replica.max_concurrency) or settings.max_concurrency
        self.load = Load()
        self.elsewhere = Load()  # the requests of other replicas, as last heard
        # So that the router reads the loads that have changed, not all of them for each request.
        self.on_load: Callable[[], object] = lambda: None
        # Why it is unhealthy, without addresses; None if it is healthy. Set by `Backends`.
        self.problem: str | None = None
        self.number = 0  # position among `Backends.all`
        self.num_failures = 0
        self.prefix_cache = CacheWitness(self.name)
        api_key = (replica and replica.api_key) or settings.api_key
        self.has_own_key = bool(replica and replica.api_key)
        # For the requests from now on; None: the client's is forwarded.
        self.api_key = api_key.get_secret_value() if api_key else None
        # Clients send API keys of the proxy, which must not reach the backend.
        self.hides_client_keys = False
        address = urlsplit(self.url)
        self._path = address.path
        self._host = address.netloc.encode()
        self.use_login(configured)
        self._client = HttpClient(
            configured,  # a dot at the end of a host keeps it out of the search domains
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.read_timeout_s,
        )

    def __repr__(self) -> str:
        return f"Backend({self.url!r})"

    @property
    def key(self) -> str:
        """Its identity for other processes, which may have given it another name."""
        return self.url if self.rank is None else f"{self.url}#{self.rank}"

    @property
    def is_healthy(self) -> bool:
        return self.problem is None

    @property
    def has_room(self) -> bool:
        if self.max_concurrency is None:
            return True
        return self.load.running + self.elsewhere.running < self.max_concurrency

    def add_load(self, *, running: int = 0, assigned: int = 0, prefill_tokens: int = 0) -> None:
        self.load.running += running
        self.load.assigned += assigned
        self.load.prefill_tokens += prefill_tokens
        self.on_load()

    def hear(self, elsewhere: Load) -> None:
        self.elsewhere = elsewhere
        self.on_load()

    def use_login(self, url: str) -> None:
        """Send the user and the password of a URL with later requests."""
        login = urlsplit(url)
        self._login = _basic(login.username, login.password)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def request(
        self, method: str, target: str, *, headers: RawHeaders, body: bytes = b""
    ) -> UpstreamResponse:
        """Send a request and return the response with its body unread.

        Retries once, on a new connection, if the connection was refused; or if a used one was
        closed before the response and the request may be repeated: its method is idempotent, or it
        has an `idempotency-key`.

        `headers` are all but host, content-length and the backend's own API key. A
        BackendRefusedError means that nothing was sent.
        """
        head = self._head(method, target, self.with_key(headers), len(body))
        is_head = method == "HEAD"
        try:
            return await self._client.request(head, body, is_head_request=is_head)
        except BackendRefusedError:
            return await self._client.request(head, body, is_head_request=is_head)
        except StaleConnectionError:
            if not _is_repeatable(method, headers):
                raise
        return await self._client.request(head, body, is_head_request=is_head, is_pooled=False)

    async def find_problem(self) -> Problem | None:
        """Return why requests cannot succeed; a 404 is fine: hosted APIs have no `/health`.

        Credentials are judged if they are the proxy's own.
        """
        try:
            status, _ = await self.ask("/health")
            if status >= 500:
                return Problem(f"GET /health returned {status}")
            if self.api_key is None and self._login is None and not self.hides_client_keys:
                return None
            status, _ = await self.ask("/v1/models")
        except BackendError as error:
            return Problem(str(error), is_certain=isinstance(error, BackendRefusedError))
        if status in (401, 403):
            return Problem(f"credentials: GET /v1/models returned {status}", is_certain=True)
        return None

    async def fetch(self, path: str, *, body: bytes | None = None) -> bytes | None:
        """Return a small response's body: empty unless its status is 200, None without one."""
        try:
            status, data = await self.ask(path, body=body)
        except BackendError:
            return None
        return data if status == 200 else b""

    async def ask(
        self,
        path: str,
        *,
        body: bytes | None = None,
        headers: RawHeaders = (),
        timeout_s: float | None = None,
    ) -> tuple[int, bytes]:
        """Send a request of the proxy's own on a new connection; return its status and body."""
        timeout_s = _READY_TIMEOUT_S if timeout_s is None else timeout_s
        method = "GET" if body is None else "POST"
        own = [(b"content-type", b"application/json"), (b"connection", b"close"), *headers]
        head = self._head(method, path, self.with_key(own), len(body or b""))
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._client.request(
                    head, body or b"", is_head_request=False, is_pooled=False
                )
                try:
                    return response.status, await _read_small(response)
                finally:
                    response.close()
        except TimeoutError:
            raise BackendTimeoutError(f"no response within {timeout_s:g} s") from None

    def with_key(self, headers: RawHeaders) -> RawHeaders:
        if self.api_key is None and not self.hides_client_keys:
            is_given = self._login is None or any(name == b"authorization" for name, _ in headers)
            return headers if is_given else [*headers, (b"authorization", self._login or b"")]
        kept = [header for header in headers if header[0] not in CREDENTIALS]
        if self.api_key is not None:
            key = self.api_key.encode()
            kept.append((b"authorization", b"Bearer " + key))
            given = {name for name, _ in headers}
            kept.extend([(name, key) for name in CREDENTIALS[1:] if name in given])
        return kept

    def _target(self, target: str) -> str:
        return target if target == "*" else self._path + target  # `OPTIONS *` is about the server

    def _head(self, method: str, target: str, headers: RawHeaders, num_bytes: int) -> bytes:
        """Render a request's head; a line break in a header could smuggle a request in."""
        lines = [
            b"%b %b HTTP/1.1" % (method.encode(), self._target(target).encode()),
            b"host: " + self._host,
        ]
        if self.rank is not None:
            headers = [header for header in headers if header[0] != _RANK_HEADER]
            lines.append(b"%b: %d" % (_RANK_HEADER, self.rank))
        lines.extend([b"%b: %b" % header for header in headers])
        if num_bytes or method not in _WITHOUT_BODY:
            lines.append(b"content-length: %d" % num_bytes)
        head = b"\r\n".join(lines)
        if head.count(b"\n") >= len(lines) or head.count(b"\r") >= len(lines):
            raise BackendConnectionError("a header of the request has a line break")
        return head + b"\r\n\r\n"


def _is_repeatable(method: str, headers: RawHeaders) -> bool:
    return method in _IDEMPOTENT or any(name == b"idempotency-key" for name, _ in headers)


def _basic(name: str | None, password: str | None) -> bytes | None:
    if name is None:
        return None
    return b"Basic " + b64encode(f"{unquote(name)}:{unquote(password or '')}".encode())


async def _read_small(response: UpstreamResponse) -> bytes:
    body = bytearray()
    while chunk := await response.read():
        body += chunk
        if len(body) > _MAX_FETCHED_BYTES:
            return b""
    return bytes(body)
