"""Subscribe to KV event streams over ZeroMQ, in a background thread.

Knows sockets, reconnects, replays, and when to leave a publisher that sends rubbish; sees if the
events of a request arrive.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

from ragboost.cache_events import MAX_BATCH_BYTES, BlockStored, EventBatch
from ragboost.cache_sync.discovery import EventSource
from ragboost.cache_sync.event_stream import EventStream, StreamState
from ragboost.cache_sync.prefix_mirror import Changes
from ragboost.errors import ConfigError
from ragboost.requests.headers import new_request_id

_END = (-1).to_bytes(8, "big", signed=True)
_POLL_MS = 100
_FRAMES_PER_POLL = 256
_MAX_QUEUED_FRAMES = 10_000  # during a replay; more become a gap
_RECONNECT_S = 0.1
_RETRY_S = 1.0  # after an error
_MAX_REJECTED = 10  # frames at a time; one more is allowed per second
_MONITORED = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED


class _Options(NamedTuple):
    replay_timeout_s: float
    probe_interval_s: float
    pause_s: float


class Subscriber:
    """A thread that keeps one mirror per source in step with its engine; a context manager.

    Reading `streams` (state, counts, `resident_tokens`) is safe from any thread and never blocks.
    `on_change`, with the stream's name, and `on_batch` are called in the subscriber's thread. A
    replay fails, and a stream is probed for lost batches, after seconds without a frame.
    """

    def __init__(
        self,
        sources: Iterable[EventSource],
        *,
        on_change: Callable[[str, Changes], None] | None = None,
        on_batch: Callable[[EventBatch], None] | None = None,
        replay_timeout_s: float = 5.0,
        probe_interval_s: float = 2.0,
        pause_s: float = 5.0,
    ) -> None:
        self.streams: dict[str, EventStream] = {}  # by name of the source
        self._sources = tuple(sources)
        self._options = _Options(replay_timeout_s, probe_interval_s, pause_s)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        for source in self._sources:
            self.streams[source.name] = EventStream(
                source.name,
                has_replay=source.replay_endpoint is not None,
                on_change=on_change and partial(on_change, source.name),
                on_batch=on_batch,
            )

    def __enter__(self) -> "Subscriber":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def silence(self, name: str) -> str | None:
        """Return why nothing arrives on a stream, and the way out; None if something has."""
        stream = self.streams[name]
        if stream.state is not StreamState.FALLBACK:
            return None
        (source,) = (source for source in self._sources if source.name == name)
        if stream.is_flooding:
            return "many malformed frames were sent, see the log; trying again soon"
        return source.silence(is_connected=stream.is_connected)

    def start(self) -> None:
        """Open the sockets and start the thread."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        links: list[_Link] = []
        for source in self._sources:
            try:
                links.append(_Link(source, self.streams[source.name], context, self._options))
            except zmq.ZMQError as error:
                context.destroy(linger=0)
                raise ConfigError(
                    f"KV event stream {source.name!r}: cannot use {source.endpoint!r}: {error}"
                ) from None
        self._thread = threading.Thread(
            target=self._run, args=(context, links), name="ragboost-kv-events", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; every stream is FALLBACK afterwards."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, context: "zmq.Context[zmq.Socket[bytes]]", links: list["_Link"]) -> None:
        try:
            while not self._stopping.is_set():
                poller = zmq.Poller()
                for link in links:
                    link.register(poller)
                if poller.sockets:
                    ready = {socket for socket, _ in poller.poll(_POLL_MS)}
                else:  # a poll without sockets would not wait
                    ready = set()
                    self._stopping.wait(_POLL_MS / 1000)
                for link in links:
                    link.supervise(ready, time.monotonic())
        finally:
            for link in links:
                link.close()
            context.destroy(linger=0)
            for stream in self.streams.values():
                stream.close()


class _Allowance:
    """How many rejected frames a publisher may still send, refilled by one per second."""

    def __init__(self, now: float) -> None:
        self._left = float(_MAX_REJECTED)
        self._updated_at = now
        self._num_rejected = 0

    def is_exceeded(self, num_rejected: int, *, now: float) -> bool:
        """Charge what was rejected since the last call."""
        left = min(_MAX_REJECTED, self._left + now - self._updated_at)
        self._left = left - (num_rejected - self._num_rejected)
        self._updated_at, self._num_rejected = now, num_rejected
        return self._left < 0

    def renew(self) -> None:
        self._left = float(_MAX_REJECTED)


class _Link:
    """The sockets of one stream, owned by the subscriber's thread."""

    def __init__(
        self,
        source: EventSource,
        stream: EventStream,
        context: "zmq.Context[zmq.Socket[bytes]]",
        options: _Options,
    ) -> None:
        self._source = source
        self._stream = stream
        self._context = context
        self._options = options
        self._active_at = time.monotonic()
        self._allowance = _Allowance(self._active_at)
        self._num_refused = 0  # connections that ended, messages without a number
        self._resume_at: float | None = None  # while the publisher is left alone
        self._dealer: zmq.Socket[bytes] | None = None
        self._open()

    def register(self, poller: zmq.Poller) -> None:
        """Register the sockets to read; live frames stay queued in theirs during a replay."""
        if self._resume_at is None:
            poller.register(self._monitor, zmq.POLLIN)
            poller.register(self._dealer or self._sub, zmq.POLLIN)

    def supervise(self, ready: set[object], now: float) -> None:
        """Do what is to be done now; survive everything that a publisher can send.

        An error drops the frame and the mirror's contents, and subscribes anew.
        """
        try:
            if self._resume_at is None:
                self._poll(ready, now)
            elif now >= self._resume_at:
                self._resume_at, self._active_at = None, now
                self._stream.is_flooding = False
                self._open()
        except Exception as error:  # noqa: BLE001 - the streams' thread must outlive every error
            self._stream.faulted(error)
            self._pause(now, seconds=_RETRY_S)
        if self._is_flooded(now):
            pause = f"left alone for {self._options.pause_s:g} s after many malformed frames"
            self._stream.note("num_pauses", pause)
            self._allowance.renew()
            self._stream.is_flooding = True
            self._pause(now, seconds=self._options.pause_s)
        self._stream.notify_state(is_idle=ready.isdisjoint((self._dealer, self._sub)))

    def close(self) -> None:
        self._drop_dealer()
        with contextlib.suppress(zmq.ZMQError):  # closed already
            self._sub.disable_monitor()
        self._monitor.close(linger=0)
        self._sub.close(linger=0)

    def _open(self) -> None:
        """Open the sockets; a zmq.ZMQError is raised if the endpoint cannot be used."""
        source = self._source
        self._sub = self._context.socket(zmq.SUB)
        self._sub.set_hwm(_MAX_QUEUED_FRAMES)
        self._configure(self._sub, source.endpoint)
        self._sub.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
        self._sub.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15_000)
        self._sub.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)
        self._sub.setsockopt(zmq.SUBSCRIBE, source.topic.encode())
        self._monitor = self._sub.get_monitor_socket(int(_MONITORED))
        if source.bind:
            self._sub.bind(source.endpoint)
        else:
            self._sub.connect(source.endpoint)
        if source.endpoint.startswith("inproc://"):  # has no handshake
            self._stream.connected()

    def _pause(self, now: float, *, seconds: float) -> None:
        """Close the sockets, which ends the flood and frees what is queued."""
        self.close()
        self._stream.disconnected()
        self._resume_at = now + seconds

    def _is_flooded(self, now: float) -> bool:
        num_rejected = self._stream.num_rejected + self._num_refused
        return self._allowance.is_exceeded(num_rejected, now=now)

    def _poll(self, ready: set[object], now: float) -> None:
        if self._monitor in ready:
            self._read_monitor(now)
        if self._resume_at is not None:
            return
        if self._dealer is not None and self._dealer in ready:
            self._read_replay(self._dealer, now)
        elif self._sub in ready:
            self._read_live(now)
        request = self._stream.take_request()
        if request is not None:
            self._request_replay(request, now)
        elif self._dealer is not None and now - self._active_at > self._options.replay_timeout_s:
            self._drop_dealer()
            self._stream.replay_failed()
        elif self._dealer is None and now - self._active_at > self._options.probe_interval_s:
            self._active_at = now
            self._stream.probe()

    def _read_monitor(self, now: float) -> None:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            self._active_at = now
            if event == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._stream.note("num_connected", "connected", level=logging.INFO)
                self._stream.connected()
            elif event == zmq.Event.DISCONNECTED:
                self._stream.note("num_disconnected", "disconnected")
                self._num_refused += 1
                self._drop_dealer()
                self._stream.disconnected()
                if not self._source.bind:
                    # After a frame that is too large, libzmq does not reconnect by itself.
                    self._pause(now, seconds=_RECONNECT_S)
                    return

    def _read_live(self, now: float) -> None:
        self._active_at = now
        for _ in range(_FRAMES_PER_POLL):
            if self._stream.is_replaying or self._is_flooded(now) or not self._sub.poll(0):
                return
            frame = self._parse_frame(self._sub.recv_multipart())
            if frame is not None:
                self._stream.receive(*frame)
            time.sleep(0)  # yield the GIL to the event loop's thread between two batches

    def _read_replay(self, dealer: "zmq.Socket[bytes]", now: float) -> None:
        self._active_at = now
        for _ in range(_FRAMES_PER_POLL):
            if self._is_flooded(now) or not dealer.poll(0):
                return
            parts = dealer.recv_multipart()
            if len(parts) >= 2 and parts[-2] == _END:
                self._drop_dealer()
                self._stream.replay_ended()
                return
            frame = self._parse_frame(parts)
            if frame is not None:
                self._stream.replay(*frame)
            if not self._stream.is_replaying:
                self._drop_dealer()
            if self._dealer is None or self._stream.has_request:
                return
            time.sleep(0)

    def _request_replay(self, start: int, now: float) -> None:
        self._drop_dealer()
        self._active_at = now
        endpoint = self._source.replay_endpoint
        if endpoint is None:
            return
        # A DEALER, since one request has many responses.
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.set_hwm(20_000)  # the ROUTER drops what is not read in time
        self._configure(self._dealer, endpoint)
        self._dealer.connect(endpoint)
        self._dealer.send_multipart([b"", start.to_bytes(8, "big")])

    def _drop_dealer(self) -> None:
        if self._dealer is not None:
            self._dealer.close(linger=0)
            self._dealer = None

    def _parse_frame(self, parts: list[bytes]) -> tuple[int, bytes] | None:
        number = int.from_bytes(parts[-2], "big", signed=True) if len(parts) > 1 else -1
        if number < 0 or len(parts[-2]) != 8:
            self._num_refused += 1
            self._stream.note("num_unnumbered", "dropped a message without a sequence number")
            return None
        return number, parts[-1]

    @staticmethod
    def _configure(socket: "zmq.Socket[bytes]", endpoint: str) -> None:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
        socket.setsockopt(zmq.IPV6, int("[" in endpoint))


_POLL_S = 0.02
_REQUESTS = 3  # a publisher drops what it sends before it has noticed its subscriber


class EventArrival(NamedTuple):
    is_connected: bool  # a publisher was found
    has_stored: bool = False  # blocks were stored after the request
    has_id: bool = False  # and their event has the request's id


async def probe_events(
    sources: Sequence[EventSource], send: Callable[[str], Awaitable[None]], *, timeout_s: float
) -> EventArrival:
    """Subscribe to an engine's sources, send a request, and wait for its event.

    `send` sends a new prompt of at least a block with this session id, and awaits the response.
    """
    stored: set[str | None] = set()  # session ids, added by the subscriber's thread

    def on_batch(batch: EventBatch) -> None:
        events = (event for event in batch.events if isinstance(event, BlockStored))
        stored.update(event.session_id for event in events)

    with Subscriber(sources, on_batch=on_batch) as subscriber:
        streams = subscriber.streams.values()
        if not await _met(lambda: any(stream.is_connected for stream in streams), timeout_s):
            return EventArrival(is_connected=False)
        for _ in range(_REQUESTS):
            request_id = new_request_id()
            stored.clear()
            await send(request_id)
            if await _met(lambda name=request_id: name in stored, timeout_s):  # type: ignore[misc]
                return EventArrival(is_connected=True, has_stored=True, has_id=True)
            if stored:
                break
        return EventArrival(is_connected=True, has_stored=bool(stored))


async def _met(condition: Callable[[], bool], timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - streams set no asyncio.Event
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return False
    return True
