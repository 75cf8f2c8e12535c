"""Apply the reports of `engine_hooks.reporter` to mirrors of the engines' prefix caches."""

import threading
from collections.abc import Callable
from functools import partial

from ragboost.cache_sync.event_stream import EventStream
from ragboost.cache_sync.prefix_mirror import Changes
from ragboost.engine_hooks.reports import Reply, Report, decode_report, encode
from ragboost.errors import EventStreamError, RequestError


class ReportReceiver:
    """Keep a mirror per reporting engine process. Thread-safe.

    A stream is FALLBACK after `silence_s` without a report; plug-ins report at least every 5 s.
    `name` returns the name under which a reported stream is kept, or raises RequestError.
    """

    def __init__(
        self,
        *,
        on_change: Callable[[str, Changes], None] | None = None,
        silence_s: float = 15.0,
        name: Callable[[str], str] = str,
    ) -> None:
        self.streams: dict[str, EventStream] = {}  # by the name under which they are kept
        self._on_change = on_change
        self._silence_s = silence_s
        self._name = name
        self._epochs: dict[str, str] = {}
        self._received_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def receive(self, body: bytes, *, now: float) -> bytes:
        """Apply a report and return the body of the response (msgpack)."""
        try:
            report = decode_report(body)
        except EventStreamError as error:
            raise RequestError(str(error), param="body") from None
        name = self._name(report.stream)
        with self._lock:
            stream = self._stream(name, report)
            self._received_at[name] = now
            if stream.is_replaying and not report.is_replay:
                stream.connected()  # the plug-in lost the reply that asked for a replay: ask again
            for seq, payload in report.batches:
                if stream.has_request:
                    break  # a replay will bring the rest
                if report.is_replay:
                    stream.replay(seq, payload)
                else:
                    stream.receive(seq, payload)
            if report.is_replay and report.is_last and not stream.has_request:
                stream.replay_ended()
            stream.notify_state(is_idle=not report.batches)
            return encode(Reply(replay_from=stream.take_request()))

    def expire(self, *, now: float) -> None:
        """Disconnect streams that have been silent for too long; call every few seconds."""
        with self._lock:
            for name, stream in self.streams.items():
                if stream.is_connected and now - self._received_at[name] > self._silence_s:
                    stream.disconnected()
                    self._epochs[name] = ""

    def _stream(self, name: str, report: Report) -> EventStream:
        stream = self.streams.get(name)
        if stream is None:
            on_change = self._on_change and partial(self._on_change, name)
            stream = EventStream(name, has_replay=True, on_change=on_change)
            self.streams[name] = stream
        if self._epochs.get(name) != report.epoch:
            self._epochs[name] = report.epoch
            stream.disconnected()
            stream.connected()
        return stream
