"""Log the shape of completions for replays: hashed ids and lengths in tokens, never a text.

A line is a `RecordedRequest`. A thread writes it: the event loop never waits for the disk, and what
the disk does not take costs lines, not requests.
"""

import asyncio
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from ragboost.booster.tokens import TokenCounter
from ragboost.errors import ConfigError
from ragboost.proxy.records import Answer, SentRequest
from ragboost.requests.parsed_request import ParsedRequest
from ragboost.requests.prompt_prefix import prompt_prefix
from ragboost.requests.recorded_request import MAX_TOKENS, RecordedRequest
from ragboost.requests.wires.usage import Usage

logger = logging.getLogger(__name__)

_MAX_BYTES = 100 * 1024 * 1024  # of both files
_MAX_WAITING_BYTES = 16 * 1024 * 1024
_STOP_S = 5.0
_HEX = 16


def describe(request: ParsedRequest, tokens: TokenCounter) -> RecordedRequest:
    """Return what is logged of a request; `tail_tokens` are first the whole prompt's."""
    found, shape = request.found, request.shape
    ratio, sizes = tokens.tokens_per_byte, [memoryview(m).nbytes for m in request.body.messages]
    head, num_before, inside = "", 0, True
    if found is not None and shape is not None:
        inside = shape.in_place
        head = prompt_prefix(request.body, shape, found)
        num_before = sum(sizes[: found.message]) + (found.start if inside else 0)
    documents = found.documents if found is not None else ()
    doc_tokens = tuple(tokens.count_documents(documents))
    total = round((sum(sizes) or len(request.body.raw)) * ratio)
    detection = request.detection
    return RecordedRequest(
        t_s=0.0,
        tenant=_hashed(*request.tenant_key),
        session=_hashed(request.session) if request.session is not None else None,
        head=head,
        head_tokens=round(num_before * ratio),
        doc_ids=tuple([document.key[:_HEX] for document in documents]),
        doc_tokens=doc_tokens,
        tail_tokens=total + (0 if inside else sum(doc_tokens)),
        detection=detection.name,
        frame=detection.frame,
    )


def _hashed(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:_HEX]


class RequestLog:
    """A log of at most `max_bytes`: the file, and the one before it with the suffix `.1`.

    `count` is called, also from the writing thread, with `written` or `dropped` and a number of
    lines. A ConfigError is raised if the file cannot be opened.
    """

    def __init__(
        self, path: Path, *, count: Callable[[str, int], None], max_bytes: int = _MAX_BYTES
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes // 2
        self._count = count
        self._file = -1
        self._size = 0
        self._has_failed = False
        self._lines: list[bytes] = []
        self._waiting_bytes = 0
        self._is_closed = False
        self._changed = threading.Condition()  # never held while a file is written
        self._thread = threading.Thread(target=self._run, name="ragboost-record", daemon=True)
        try:
            self._open()
        except OSError as error:
            raise ConfigError(f"proxy.record: cannot write {path}: {error.strerror}") from None

    def open(self) -> None:
        """Start to write."""
        self._thread.start()

    async def close(self) -> None:
        """Write what waits and stop; give up a disk that does not answer."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, _STOP_S)

    async def done(self, parsed: ParsedRequest, sent: SentRequest, answer: Answer) -> None:
        if sent.record is not None:
            self.add(answer, sent.record, answer.usage)

    def add(self, answer: Answer, record: RecordedRequest, usage: Usage | None) -> None:
        """Hand over the line of a completion that has ended; drop it if the disk is behind."""
        before = record.head_tokens + sum(record.doc_tokens)
        reported = usage.prompt_tokens if usage is not None else 0
        total = min(reported, MAX_TOKENS) or record.tail_tokens  # an estimate: of the whole prompt
        arrived = time.time() - (time.perf_counter() - answer.started)
        shape = replace(record, t_s=round(arrived, 3), tail_tokens=max(0, total - before))
        line = msgspec.json.encode(shape) + b"\n"
        with self._changed:
            is_kept = self._waiting_bytes + len(line) <= _MAX_WAITING_BYTES
            if is_kept:
                self._lines.append(line)
                self._waiting_bytes += len(line)
                self._changed.notify()
        if not is_kept:
            self._count("dropped", 1)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._is_closed:
                    self._changed.wait()
                lines, self._lines, self._waiting_bytes = self._lines, [], 0
            if not lines:
                break
            for line in lines:
                self._write(line)
        if self._file >= 0:
            os.close(self._file)

    def _write(self, line: bytes) -> None:
        try:
            self._append(line)
        except OSError as error:
            self._count("dropped", 1)
            if not self._has_failed:
                logger.warning("proxy.record: %s: %s", self._path, error.strerror)
            self._has_failed = True
        else:
            self._has_failed = False
            self._count("written", 1)

    def _append(self, line: bytes) -> None:
        if len(line) > self._max_bytes:
            raise OSError(0, "a line is longer than the log may have")
        if self._file < 0:
            self._open()
        if self._size + len(line) > self._max_bytes:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            full, self._file = self._file, -1
            os.close(full)
            self._open()
        if (written := os.write(self._file, line)) < len(line):  # half a line spoils the next one
            size = os.fstat(self._file).st_size  # another proxy may write here, too
            os.ftruncate(self._file, size - written)
            raise OSError(0, "no space left")
        self._size += len(line)

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size
