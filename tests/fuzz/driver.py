"""Run one episode: an app, its clients, and the oracle after each request.

Everything random comes from the episode's seed and is drawn before a round of requests is sent, so
that an episode can be repeated.
"""

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from ragboost.config import Settings
from ragboost.proxy.app import ProxyApp, create_app
from tests.fakes.proxy import ProxyServer
from tests.fakes.redis import RedisServer
from tests.fuzz.backend import Backend
from tests.fuzz.clients import Clients
from tests.fuzz.oracle import Fault, check
from tests.fuzz.requests import Asked, Headers, Reply
from tests.fuzz.worlds import SERVED_WORLDS, WORLDS, World

_ROUND = 6  # requests at the same time, at most
_HANG_S = 120.0


class Sendable(Protocol):
    """A request with the number that the backend knows it by."""

    @property
    def number(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def body(self) -> str: ...


Call = Callable[[Sendable], Awaitable[Reply]]


@dataclass
class Report:
    """What a run has seen.

    Attributes:
        requests: that were sent.
        counts: of faults, by kind.
        failures: the first faults, with the case that `replay` repeats.
        moves: of the clients, by name.
    """

    requests: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, Fault]] = field(default_factory=list)
    moves: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Episode:
    """A number of requests to one app.

    Attributes:
        seed: of the run.
        number: of the episode in the run; chooses the world.
        size: requests.
        is_served: requests are sent over HTTP to the proxy's server, in worlds of their own.
    """

    seed: int
    number: int
    size: int = 250
    is_served: bool = False

    @property
    def world(self) -> World:
        """The settings of the proxy."""
        worlds = SERVED_WORLDS if self.is_served else WORLDS
        return worlds[self.number % len(worlds)]

    def run(
        self, report: Report, *, see: Callable[[Asked, list[bytes], Reply], None] | None = None
    ) -> None:
        """Run the episode in a new event loop, and add to a report.

        Args:
            report: gets counts and failures.
            see: called with each request, what the backend received, and the reply.
        """
        import uvloop

        with tempfile.TemporaryDirectory() as folder:
            uvloop.run(self._run(report, Path(folder), see))

    async def _run(
        self,
        report: Report,
        folder: Path,
        see: Callable[[Asked, list[bytes], Reply], None] | None,
    ) -> None:
        backend, world = Backend(), self.world
        rng = random.Random(f"{self.seed}.{self.number}")
        urls = [await backend.listen() for _ in range(world.num_backends)]
        clients = Clients(rng, world)
        with RedisServer() if world.needs_redis else nullcontext() as redis:
            settings = world.settings(urls, folder, redis_url=redis.url if redis else None)
            opened = serving(settings, backend) if self.is_served else in_process(settings, backend)
            async with opened as call:
                while clients.num_asked < self.size:
                    size = min(rng.randint(1, _ROUND), self.size - clients.num_asked)
                    await self._round(call, backend, clients, size=size, report=report, see=see)
        await backend.close()

    async def _round(
        self,
        call: Call,
        backend: Backend,
        clients: Clients,
        *,
        size: int,
        report: Report,
        see: Callable[[Asked, list[bytes], Reply], None] | None,
    ) -> None:
        """Send some requests at the same time, and check them in the order of their numbers."""
        asked = clients.ask(size)
        for request in asked:
            backend.expect(request.number, request.answer)
        sent = asyncio.gather(*(call(request) for request in asked))
        replies = await asyncio.wait_for(sent, _HANG_S)
        for request, reply in zip(asked, replies, strict=True):
            bodies = backend.forget(request.number)
            report.requests += 1
            report.moves[request.move] += 1
            for fault in check(request, bodies, reply, self.world):
                report.counts[fault.kind] += 1
                if len(report.failures) < 100:
                    case = f"{self.seed}.{self.number}.{request.number}"
                    report.failures.append((case, fault))
            if see is not None:
                see(request, bodies, reply)
            clients.received(request, bodies[-1] if bodies else None, reply)


@asynccontextmanager
async def in_process(settings: Settings, backend: Backend) -> AsyncIterator[Call]:
    """Call the application as a server would."""
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        yield lambda asked: _call(app, asked, backend)


@asynccontextmanager
async def serving(settings: Settings, backend: Backend) -> AsyncIterator[Call]:
    """Serve in a thread, and send requests over HTTP."""
    proxy = ProxyServer(settings)
    await asyncio.to_thread(proxy.__enter__)
    try:
        async with httpx.AsyncClient(base_url=proxy.url, timeout=_HANG_S) as client:
            yield lambda asked: _send(client, asked, backend)
    finally:
        await asyncio.to_thread(proxy.__exit__)


async def _send(client: httpx.AsyncClient, asked: Sendable, backend: Backend) -> Reply:
    sending = asyncio.create_task(_exchange(client, asked))
    backend.leave[asked.number] = sending.cancel
    try:
        return await sending
    except asyncio.CancelledError:
        return Reply(0, b"", False)


async def _exchange(client: httpx.AsyncClient, asked: Sendable) -> Reply:
    headers = [*asked.headers, (b"content-type", b"application/json")]
    body, is_complete = b"", False
    async with client.stream(
        "POST", asked.path, headers=headers, content=asked.body.encode()
    ) as response:
        with suppress(httpx.RemoteProtocolError):  # the response was cut
            async for data in response.aiter_raw():
                body += data
            is_complete = True
    return Reply(response.status_code, body, is_complete, tuple(response.headers.raw))


async def _call(app: ProxyApp, asked: Sendable, backend: Backend) -> Reply:
    """Send a request to the app as a server would, and return what it answers."""
    body = asked.body.encode()
    events: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    left = asyncio.Event()
    backend.leave[asked.number] = left.set
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": asked.path,
        "raw_path": asked.path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*asked.headers, (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }

    async def receive() -> Any:
        if not events:
            await left.wait()
        return events.pop() if events else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    bodies = [message for message in sent if message["type"] == "http.response.body"]
    return Reply(
        status=sent[0]["status"] if sent else 0,
        body=b"".join(message.get("body", b"") for message in bodies),
        is_complete=bool(bodies) and not bodies[-1].get("more_body", False),
        headers=tuple(sent[0]["headers"]) if sent else (),
    )
