"""Report an engine's cache events to the proxy over HTTP, without ever blocking the engine."""

import http.client
import itertools
import json
import logging
import os
import secrets
import socket
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from ragboost.engine_hooks.reports import CONTENT_TYPE, REPORT_PATH, Report, decode_reply, encode
from ragboost.errors import EventStreamError

logger = logging.getLogger(__name__)

URL_VARIABLE = "RAGBOOST_ENGINE_HOOKS__REPORT_URL"
STREAM_VARIABLE = "RAGBOOST_ENGINE_HOOKS__REPORT_STREAM"
KEY_VARIABLE = "RAGBOOST_ENGINE_HOOKS__REPORT_KEY"

_POLL_S = 0.02
_HEARTBEAT_S = 5.0
_MAX_BACKOFF_S = _TIMEOUT_S = 5.0
_MAX_KEPT_BYTES = 128 * 1024 * 1024
_BATCHES_PER_REPORT = 64
_BYTES_PER_REPORT = 1024 * 1024


class Reporter:
    """Number event batches, keep the latest for replays, and post them from a background thread.

    `put` only appends to a queue, so a proxy that hangs or is down costs the engine nothing. A
    batch dropped because the queue is full leaves a gap in the sequence numbers.
    """

    def __init__(
        self,
        url: str,
        *,
        stream: str,
        max_queued: int = 10_000,
        max_kept: int = 10_000,
        key: str | None = None,
    ) -> None:
        self.stream = stream
        self._headers = {"content-type": CONTENT_TYPE}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self.epoch = secrets.token_hex(8)  # random id of this process
        self.num_dropped = 0  # batches dropped because the queue was full
        self._url = urlsplit(url)
        self._max_kept = max_kept
        self._numbers = itertools.count()
        self._max_queued = max_queued
        self._queue: deque[tuple[int, float, Sequence[Any]]] = deque()
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._next = 0  # number of the first batch that the proxy has not acknowledged
        self._connection: http.client.HTTPConnection | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ragboost-reporter", daemon=True)
        self._thread.start()

    def put(self, events: Sequence[Any]) -> None:
        """Queue the events of one step; the objects must not be modified afterwards."""
        number = next(self._numbers)
        if len(self._queue) < self._max_queued:
            self._queue.append((number, time.time(), events))
        else:
            self.num_dropped += 1

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        backoff, reported_at = 0.0, 0.0
        while not self._stopping.wait(max(_POLL_S, backoff)):
            self._encode_queued()
            is_due = time.monotonic() - reported_at > _HEARTBEAT_S
            if not is_due and not (self._kept and self._kept[-1][0] >= self._next):
                continue
            try:
                self._send_new()
                backoff, reported_at = 0.0, time.monotonic()
            except (OSError, http.client.HTTPException, EventStreamError) as error:
                self._disconnect()
                if not backoff:
                    logger.warning("cannot report cache events to %s: %s", self._url.netloc, error)
                backoff = min(max(2 * backoff, 0.1), _MAX_BACKOFF_S)
        self._disconnect()

    def _encode_queued(self) -> None:
        while self._queue:
            number, ts, events = self._queue.popleft()
            payload = encode((ts, events))
            self._kept.append((number, payload))
            self._kept_bytes += len(payload)
            while len(self._kept) > self._max_kept or self._kept_bytes > _MAX_KEPT_BYTES:
                self._kept_bytes -= len(self._kept.popleft()[1])

    def _send_new(self) -> None:
        batches = self._from(self._next)
        replay_from = self._post(batches)
        if batches:
            self._next = batches[-1][0] + 1
        while replay_from is not None and not self._stopping.is_set():
            batches = self._from(replay_from)
            is_last = not batches or batches[-1][0] == self._kept[-1][0]
            again = self._post(batches, is_replay=True, is_last=is_last)
            if batches:
                self._next = max(self._next, batches[-1][0] + 1)
            if again is not None:
                replay_from = again
            elif is_last:
                return
            else:
                replay_from = batches[-1][0] + 1

    def _from(self, number: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        size = 0
        start = bisect_left(self._kept, number, key=lambda kept: kept[0])
        for batch in itertools.islice(self._kept, start, None):
            size += len(batch[1])
            if found and (len(found) >= _BATCHES_PER_REPORT or size > _BYTES_PER_REPORT):
                break
            found.append(batch)
        return found

    def _post(
        self, batches: list[tuple[int, bytes]], *, is_replay: bool = False, is_last: bool = False
    ) -> int | None:
        report = Report(
            stream=self.stream,
            epoch=self.epoch,
            batches=batches,
            is_replay=is_replay,
            is_last=is_last,
        )
        connection = self._connection or self._connect()
        path = self._url.path.rstrip("/") + REPORT_PATH
        connection.request("POST", path, body=encode(report), headers=self._headers)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            reason = _error_message(body)
            raise http.client.HTTPException(f"status {response.status} for {path}{reason}")
        return decode_reply(body).replay_from

    def _connect(self) -> http.client.HTTPConnection:
        kind = (
            http.client.HTTPSConnection
            if self._url.scheme == "https"
            else http.client.HTTPConnection
        )
        self._connection = kind(self._url.netloc, timeout=_TIMEOUT_S)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _error_message(body: bytes) -> str:
    try:
        return f": {json.loads(body)['error']['message']}"[:500]
    except (ValueError, TypeError, LookupError, RecursionError):
        return ""


def make_reporter(rank: int, *, url: str | None = None) -> Reporter | None:
    """Make the reporter configured in the environment; None if there is no URL of a proxy.

    The stream is `RAGBOOST_ENGINE_HOOKS__REPORT_STREAM`, by default the host name, and the rank.
    """
    url = url or os.environ.get(URL_VARIABLE)
    if not url:
        return None
    name = os.environ.get(STREAM_VARIABLE) or socket.gethostname()
    return Reporter(url, stream=f"{name}/{rank}", key=os.environ.get(KEY_VARIABLE))
