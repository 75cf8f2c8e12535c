"""Reports of the in-engine hook: their wire format, and what the proxy does with them.

`POST /v1/index/events` carries a report as msgpack, and its answer a reply. Knows no web framework.
"""

import threading
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from ragboost.cache_sync.prefix_mirror import Changes, PrefixMirror
from ragboost.cache_sync.stream import EventStream
from ragboost.errors import RequestError

REPORT_PATH = "/v1/index/events"
CONTENT_TYPE = "application/msgpack"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Numbered batches of one engine process; none at all as a sign of life.

    Attributes:
        stream: name of the replica and rank, such as `replica-0/0`.
        epoch: drawn anew by each process, so that a restart is noticed at once.
        batches: sequence number and payload, as in the last frame of a KV event message.
        is_replay: these batches answer `Reply.replay_from`.
        is_last: with `is_replay`, the end of that answer.
    """

    stream: str
    epoch: str
    batches: list[tuple[int, bytes]] = []
    is_replay: bool = False
    is_last: bool = False


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What the proxy wants next: nothing, or all batches from a number on."""

    replay_from: int | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode_report = msgspec.msgpack.Decoder(Report).decode
_decode_reply = msgspec.msgpack.Decoder(Reply).decode


def encode_report(report: Report) -> bytes:
    """Encode the body of a POST."""
    return _encode(report)


def decode_reply(body: bytes) -> Reply:
    """Decode the answer to a POST.

    Raises:
        msgspec.DecodeError: the body is something else.
    """
    reply: Reply = _decode_reply(body)
    return reply


class ReportReceiver:
    """Keeps a mirror per reporting engine process; the framework-free half of the proxy's route.

    May be called from several threads, one report at a time.

    Args:
        on_change: called with the stream's name, by the thread that calls `receive`.
        media: what counts as resident, see `PrefixMirror`.
        silence_s: after which a stream is at FALLBACK; hooks report at least every 5 s.
        max_streams: streams kept; further ones are refused.
        check: called with the name of a new stream; raises RequestError to refuse it.
    """

    def __init__(
        self,
        *,
        on_change: Callable[[str, Changes], None] | None = None,
        media: Iterable[str] = ("GPU",),
        silence_s: float = 15.0,
        max_streams: int = 256,
        check: Callable[[str], object] | None = None,
    ) -> None:
        self._check = check
        self.streams: dict[str, EventStream] = {}
        self._on_change = on_change
        self._media = tuple(media)
        self._silence_s = silence_s
        self._max_streams = max_streams
        self._epochs: dict[str, str] = {}
        self._heard_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def receive(self, body: bytes, *, now: float) -> bytes:
        """Apply a report, and return the body of the answer (msgpack).

        Args:
            body: of the request.
            now: seconds by a clock that never goes back, such as `time.monotonic()`.

        Raises:
            RequestError: the body is no report, or there are too many streams.
        """
        try:
            report: Report = _decode_report(body)
        except msgspec.DecodeError as error:
            raise RequestError(f"not a cache event report: {error}", param="body") from None
        with self._lock:
            stream = self._stream(report)
            self._heard_at[report.stream] = now
            if stream.is_replaying and not report.is_replay:
                stream.connected()  # the hook lost the thread of its replay: ask anew
            for seq, payload in report.batches:
                if stream.has_request:
                    break  # a replay will bring what is left out here
                if report.is_replay:
                    stream.replay(seq, payload)
                else:
                    stream.receive(seq, payload)
            if report.is_replay and report.is_last and not stream.has_request:
                stream.replay_ended()
            return _encode(Reply(replay_from=stream.take_request()))

    def expire(self, *, now: float) -> None:
        """Set streams that have been silent for too long to FALLBACK; call every few seconds."""
        with self._lock:
            for name, stream in self.streams.items():
                if stream.is_connected and now - self._heard_at[name] > self._silence_s:
                    stream.disconnected()
                    self._epochs[name] = ""

    def _stream(self, report: Report) -> EventStream:
        stream = self.streams.get(report.stream)
        if stream is None:
            if self._check is not None:
                self._check(report.stream)
            if len(self.streams) >= self._max_streams:
                raise RequestError(
                    f"{self._max_streams} streams report already, {report.stream!r} is refused",
                    param="stream",
                )
            stream = EventStream(
                report.stream,
                mirror=PrefixMirror(media=self._media),
                has_replay=True,
                on_change=self._on_change and partial(self._on_change, report.stream),
            )
            self.streams[report.stream] = stream
        if self._epochs.get(report.stream) != report.epoch:
            self._epochs[report.stream] = report.epoch
            stream.disconnected()
            stream.connected()
        return stream
