"""FakeEngine: an OpenAI-compatible server in a thread, with an exact prefix cache.

    with FakeEngine(block_size=16, capacity_tokens=4096) as engine:
        httpx.post(f"{engine.url}/v1/chat/completions", json={...})
        engine.requests[-1].body            # the raw bytes it received
        engine.misbehave(status=500)        # until engine.behave()

Its response depends on the prompt only. The `documents` field is rendered above the messages.
"""

import asyncio
import json
import socket
import threading
from dataclasses import dataclass, field
from typing import Any, Self
from weakref import WeakSet

from aiohttp import web

from tests.eventually import DEADLINE_S, run_event_loop
from tests.fakes.events import EventPublisher
from tests.fakes.prefix_cache import PrefixCache, tokenize
from tests.fakes.responses import MODEL, PATHS, decode, events, render_prompt, whole, words


@dataclass(frozen=True)
class Misbehaviour:
    """Faults and delays of the engine; none by default.

    Attributes:
        status: respond with this status and `body` instead of a completion.
        body: body of that response.
        headers: extra headers of every response.
        hold: accept completion requests and send nothing until `FakeEngine.release`.
        hold_after_chunks: send this many chunks of a stream, and the rest after `release`.
        drop: close the connection without a response.
        drop_reused: close a connection that has carried a request before, as idle timeouts do.
        die_after_chunks: close the connection after this many chunks of a stream.
        cut_bytes: split the stream into pieces of this many bytes.
        computes: store prompts in the prefix cache.
        released: set by `FakeEngine.release`, in the engine's event loop.
    """

    status: int | None = None
    body: bytes = b'{"error": {"message": "no", "type": "server_error", "code": 500}}'
    headers: dict[str, str] = field(default_factory=dict)
    hold: bool = False
    hold_after_chunks: int | None = None
    drop: bool = False
    drop_reused: bool = False
    die_after_chunks: int | None = None
    cut_bytes: int | None = None
    computes: bool = True
    released: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class Received:
    """A request as received, with the prefix cache's counts."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    prompt: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def usage(self) -> tuple[int, int]:
        """Prompt tokens and cached tokens."""
        return self.prompt_tokens, self.cached_tokens

    @property
    def json(self) -> Any:
        """The decoded body."""
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        """Return the last value of a header, or None."""
        return next((v for k, v in reversed(self.headers) if k.lower() == name.lower()), None)


class FakeEngine:
    """OpenAI-compatible server in a thread; its attributes may be read from the test's thread.

    Attributes:
        url: base URL, without /v1.
        requests: received requests in order, except those of `probes`.
        probes: paths that a proxy requests on its own, in order.
        caches: the prefix cache of each data-parallel rank; `cache` is the first one.
        publishers: the event publisher of each rank, or none; `events` is the first one, or None.
        num_active: requests in progress; `peak_active` is the maximum so far.
        num_cancelled: requests whose client disconnected before the end of the response.
    """

    def __init__(
        self,
        *,
        block_size: int = 16,
        capacity_tokens: int | None = None,
        events: EventPublisher | bool = False,
        port: int = 0,
        keepalive_timeout_s: float = 75.0,
        reply_tokens: int = 4,
        num_ranks: int = 1,
        chunk_reuse: dict[str, Any] | None = None,
    ) -> None:
        self._chunk_reuse = chunk_reuse  # what it says of itself; None: it is another server
        self.publishers: list[EventPublisher] = []
        if events is True:
            self.publishers = [EventPublisher() for _ in range(num_ranks)]
        elif events:
            self.publishers = [events]
        self.events = self.publishers[0] if self.publishers else None
        publishers: list[EventPublisher | None] = [*self.publishers] or [None] * num_ranks
        self.caches = [
            PrefixCache(block_size, capacity_tokens, publish=each.publish_events if each else None)
            for each in publishers
        ]
        self.cache = self.caches[0]
        self.requests: list[Received] = []
        self.probes: list[str] = []
        self.num_active = self.peak_active = self.num_cancelled = 0
        self.url = ""
        self._behaviour = self._holding = Misbehaviour()
        self._port = port
        self._keepalive_timeout_s = keepalive_timeout_s
        self._reply_tokens = reply_tokens
        self._connections: dict[int, int] = {}  # the client's port -> requests seen on it
        self._transports: WeakSet[asyncio.Transport] = WeakSet()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        self._thread.start()
        assert self._started.wait(DEADLINE_S), "FakeEngine did not start"

    def stop(self) -> None:
        """Close every connection and stop the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(DEADLINE_S)
            assert not self._thread.is_alive(), "FakeEngine did not stop"
        for publisher in self.publishers:
            publisher.close()

    def misbehave(self, **changes: Any) -> None:
        """Apply a `Misbehaviour` from the next request on; held requests stay held."""
        self._behaviour = Misbehaviour(**changes)
        if self._behaviour.hold or self._behaviour.hold_after_chunks is not None:
            self._holding = self._behaviour

    def behave(self) -> None:
        """Stop misbehaving."""
        self._behaviour = Misbehaviour()

    def release(self) -> None:
        """End the latest hold: its requests are completed, and it holds no later ones."""
        self._loop.call_soon_threadsafe(self._holding.released.set)

    @property
    def completions(self) -> list[Received]:
        """Requests to the completion routes."""
        return [r for r in self.requests if r.path.endswith("/completions")]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(
            app,
            handler_cancellation=True,
            keepalive_timeout=self._keepalive_timeout_s,
            access_log=None,
            shutdown_timeout=0.1,
            max_line_size=2**20,
            max_field_size=2**20,
        )
        await runner.setup()
        listener = socket.create_server(("127.0.0.1", self._port), backlog=1024)
        site = web.SockSite(runner, listener, backlog=1024)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        self._started.set()
        await self._stopping.wait()
        # Stop accepting before the server closes: asyncio leaks connections accepted meanwhile.
        self._loop.remove_reader(listener.fileno())
        await run_event_loop()
        while transports := self._open_transports(runner):
            for transport in transports:
                transport.abort()
            await run_event_loop()
        await runner.cleanup()
        await run_event_loop()

    def _open_transports(self, runner: web.AppRunner) -> list[asyncio.Transport]:
        """Return open connections, including those without a handler but with unread data."""
        handlers = runner.server.connections if runner.server else []
        known = {*self._transports, *(handler.transport for handler in handlers)}
        return [t for t in known if t is not None and t.get_extra_info("socket").fileno() >= 0]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path in ("/kv_event_sources", "/server_info", "/metrics", "/chunk_reuse"):
            self.probes.append(request.path)
            return self._describe(request.path)
        body = await request.read()
        assert request.transport is not None
        connection: int = request.transport.get_extra_info("peername")[1]
        is_reused = self._connections.get(connection, 0) > 0
        self._connections[connection] = self._connections.get(connection, 0) + 1
        self._transports.add(request.transport)
        is_check = request.path == "/v1/models" and request.headers.get("connection") == "close"
        # May misbehave like a completion, unlike the probes above.
        if request.path == "/health" or is_check:
            self.probes.append(request.path)
            received = Received(request.method, request.path, [], body, connection)
        else:
            received = self._record(request, body, connection)
        behaviour = self._behaviour
        self.num_active += 1
        self.peak_active = max(self.peak_active, self.num_active)
        try:
            if behaviour.drop or (behaviour.drop_reused and is_reused):
                self._connections.pop(connection)
                request.transport.abort()
                return web.Response()
            if behaviour.hold and request.path in PATHS:
                await behaviour.released.wait()
            return await self._respond(request, received, behaviour)
        except (asyncio.CancelledError, ConnectionResetError):
            self.num_cancelled += 1
            raise
        finally:
            self.num_active -= 1

    def _describe(self, path: str) -> web.Response:
        if path == "/kv_event_sources" and self.publishers:
            sources = {str(rank): each.source for rank, each in enumerate(self.publishers)}
            return web.json_response(sources)
        if path == "/metrics" and self.cache.capacity_blocks is not None:
            size, num = self.cache.block_size, self.cache.capacity_blocks + 1
            info = f'block_size="{size}",enable_prefix_caching="{num > 1}",num_gpu_blocks="{num}"'
            return web.Response(text=f"vllm:cache_config_info{{{info}}} 1.0\n")
        if path == "/chunk_reuse" and self._chunk_reuse is not None:
            return web.json_response(self._chunk_reuse)
        return web.Response(status=404)

    def _record(self, request: web.Request, body: bytes, connection: int) -> Received:
        headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in request.raw_headers]
        prompt, prompt_tokens, cached_tokens = "", 0, 0
        if request.method == "POST" and request.path in PATHS:
            fields = decode(body)
            prompt = render_prompt(fields)
            tokens = tokenize(prompt)
            salt = str(fields.get("cache_salt") or "")
            cache = self.caches[int(request.headers.get("x-data-parallel-rank", "0"))]
            prompt_tokens, cached_tokens = len(tokens), cache.match(tokens, salt=salt)
            name = fields.get("session_id") or request.headers.get("x-session-id")
            if self._behaviour.computes:
                cache.insert(tokens, salt=salt, session_id=name)
        received = Received(
            method=request.method,
            path=request.raw_path,
            headers=headers,
            body=body,
            connection=connection,
            prompt=prompt,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
        )
        self.requests.append(received)
        return received

    async def _respond(
        self, request: web.Request, received: Received, behaviour: Misbehaviour
    ) -> web.StreamResponse:
        if behaviour.status is not None:
            return web.Response(
                status=behaviour.status,
                body=behaviour.body,
                headers={"content-type": "application/json", **behaviour.headers},
            )
        if received.prompt:
            fields = decode(received.body)
            if fields.get("stream"):
                return await self._stream(request, received, behaviour)
            completion = whole(request.path, fields, self._words(received), received.usage)
            return self._json(completion, behaviour)
        if request.path == "/tokenize":
            tokens = tokenize(render_prompt(decode(received.body)))
            return self._json({"tokens": tokens, "count": len(tokens)}, behaviour)
        if request.path == "/v1/models":
            model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "fake"}
            return self._json({"object": "list", "data": [model]}, behaviour)
        if request.path == "/health":
            return web.Response(headers=behaviour.headers)
        echo = {"path": received.path, "method": received.method, "size": len(received.body)}
        return self._json(echo, behaviour)

    def _json(self, fields: dict[str, Any], behaviour: Misbehaviour) -> web.Response:
        # Indented and escaped on purpose: a relay that decodes and encodes again would change it.
        body = json.dumps(fields, indent=1, ensure_ascii=True).encode()
        headers = {"content-type": "application/json", **behaviour.headers}
        return web.Response(body=body, headers=headers)

    async def _stream(
        self, request: web.Request, received: Received, behaviour: Misbehaviour
    ) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream; charset=utf-8", **behaviour.headers}
        response = web.StreamResponse(headers=headers)
        response.enable_chunked_encoding()
        await response.prepare(request)
        for position, piece in enumerate(self.stream_pieces(received)):
            if position == behaviour.die_after_chunks:
                assert request.transport is not None
                request.transport.close()  # unlike abort, delivers what was written
                raise ConnectionResetError
            if position == behaviour.hold_after_chunks:
                await behaviour.released.wait()
            await response.write(piece)
        await response.write_eof()
        return response

    def stream_pieces(self, received: Received) -> list[bytes]:
        """Return the stream of the response to `received`, split by `cut_bytes`."""
        path = received.path.partition("?")[0]
        output = self._words(received)
        pieces = events(path, decode(received.body), output, received.usage)
        cut = self._behaviour.cut_bytes
        if cut is None:
            return pieces
        joined = b"".join(pieces)
        return [joined[i : i + cut] for i in range(0, len(joined), cut)]

    def _words(self, received: Received) -> list[str]:
        return words(tokenize(received.prompt), self._reply_tokens)
