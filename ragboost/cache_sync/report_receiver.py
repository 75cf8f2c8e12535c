"""Apply the reports of the plug-in inside an engine to a mirror of its prefix cache.

The receiving half of `engine_hooks.reporter`. Knows no web framework and no clock.
"""

import threading
from collections.abc import Callable
from functools import partial

import msgspec

from ragboost.cache_sync.event_stream import EventStream
from ragboost.cache_sync.prefix_mirror import Changes
from ragboost.engine_hooks.reports import Reply, Report, decode_report, encode
from ragboost.errors import RequestError


class ReportReceiver:
    """Keep a mirror per reporting engine process. Thread-safe.

    Args:
        on_change: called with the stream's name by the thread that calls `receive`.
        silence_s: seconds without a report after which a stream is FALLBACK; plug-ins report at
            least every 5 s.
        max_streams: further streams are refused.
        check: called with the name of a new stream; raises RequestError to refuse it.

    Attributes:
        streams: by name.
    """

    def __init__(
        self,
        *,
        on_change: Callable[[str, Changes], None] | None = None,
        silence_s: float = 15.0,
        max_streams: int = 256,
        check: Callable[[str], object] | None = None,
    ) -> None:
        self.streams: dict[str, EventStream] = {}
        self._on_change = on_change
        self._silence_s = silence_s
        self._max_streams = max_streams
        self._check = check
        self._epochs: dict[str, str] = {}
        self._received_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def receive(self, body: bytes, *, now: float) -> bytes:
        """Apply a report and return the body of the response (msgpack).

        Args:
            body: of the request.
            now: seconds by a monotonic clock.

        Raises:
            RequestError: invalid report, or a stream that is refused.
        """
        try:
            report = decode_report(body)
        except msgspec.DecodeError as error:
            raise RequestError(f"invalid cache event report: {error}", param="body") from None
        with self._lock:
            stream = self._stream(report)
            self._received_at[report.stream] = now
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
            return encode(Reply(replay_from=stream.take_request()))

    def expire(self, *, now: float) -> None:
        """Disconnect streams that have been silent for too long; call every few seconds."""
        with self._lock:
            for name, stream in self.streams.items():
                if stream.is_connected and now - self._received_at[name] > self._silence_s:
                    stream.disconnected()
                    self._epochs[name] = ""

    def _stream(self, report: Report) -> EventStream:
        stream = self.streams.get(report.stream)
        if stream is None:
            if self._check is not None:
                self._check(report.stream)
            if len(self.streams) >= self._max_streams:
                raise RequestError(
                    f"stream {report.stream!r} is refused, the limit is {self._max_streams}",
                    param="stream",
                )
            stream = EventStream(
                report.stream,
                has_replay=True,
                on_change=self._on_change and partial(self._on_change, report.stream),
            )
            self.streams[report.stream] = stream
        if self._epochs.get(report.stream) != report.epoch:
            self._epochs[report.stream] = report.epoch
            stream.disconnected()
            stream.connected()
        return stream
