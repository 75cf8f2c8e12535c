"""One request on its way through the proxy: parsed, sent, answered.

Each record is made once, by the room that knows it, and never changed. What else a room keeps of a
request it keeps under its own name: routing in its `Admission`, cache sync in its `TrackedRequest`.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from ragboost.booster.context import Context
from ragboost.booster.tokens import TokenCounter, num_bytes
from ragboost.cache_sync.tracked_request import TrackedRequest
from ragboost.proxy.hosted.comparison import CacheBreak
from ragboost.proxy.upstream.backend import Backend
from ragboost.proxy.upstream.mapped_answer import AnswerMapper
from ragboost.requests.formats import Detection
from ragboost.requests.formats.citations import CitationMap
from ragboost.requests.headers import RawHeaders
from ragboost.requests.parsed_request import Bypass, ParsedRequest
from ragboost.requests.recorded_request import RecordedRequest
from ragboost.requests.sent_history import HistoryDelta
from ragboost.requests.wires.usage import Usage

NO_DELTA = HistoryDelta()


class Savings(NamedTuple):
    """Prompt tokens that a backend did not compute because of RAGBoost, against the request as its
    client sent it; the first and the last are estimates."""

    order: float = 0.0  # negative if the client's order would have had more cached
    deduplication: float = 0.0
    reuse: float = 0.0  # of chunks
    hints: float = 0.0  # computed in addition

    @classmethod
    def of(cls, context: Context, tokens: TokenCounter, *, order_gain: float) -> "Savings":
        """Return the savings that a boosted request's documents promise, without reuse."""
        sent, retrieved = context.documents, context.retrieved
        dropped, hints = 0, sum([num_bytes(hint.text) for hint in context.hints])
        if len(retrieved) != len(sent):
            dropped = sum(tokens.count_documents(retrieved)) - sum(tokens.count_documents(sent))
        return cls(order_gain, float(dropped), hints=hints * tokens.tokens_per_byte)

    @property
    def net(self) -> float:
        return self.order + self.deduplication + self.reuse - self.hints


NO_SAVINGS = Savings()


class SentRequest(NamedTuple):
    """A request as its backend gets it, and what was done to it."""

    body: bytes
    headers: RawHeaders  # without the request id
    context: Context | None = None  # of the boosted documents
    delta: HistoryDelta = NO_DELTA  # what it adds to its conversation
    bypass: Bypass | None = None  # why nothing was boosted
    cache_break: CacheBreak | None = None  # why it is not the continuation of the one before
    record: RecordedRequest | None = None  # its shape, for `proxy.record`
    tracked: TrackedRequest | None = None  # None: nothing was boosted
    is_usage_added: bool = False  # the proxy asked for the response's usage, not the client
    num_documents: int = 0  # in this turn's part of the payload
    num_dropped: int = 0  # given, and not there
    savings: Savings = NO_SAVINGS  # predicted
    citations: CitationMap | None = None  # of the answer; None: it stays as it is
    continued: str = ""  # the text that the answer continues, if it is mapped
    seconds: float = 0.0  # to prepare it, without waiting

    @property
    def bought_tokens(self) -> int:
        return self.context.bought_tokens if self.context is not None else 0

    @property
    def dropped_tokens(self) -> int:
        """Tokens of documents that the payload has already, so that they are not sent."""
        return int(self.savings.deduplication)

    def saved(self, usage: Usage | None) -> Savings:
        """Return what was saved, as far as the backend's report confirms the prediction: one that
        has fewer cached tokens than predicted has evicted some, in any order."""
        if usage is None or (self.context is None and not usage.reused_tokens):
            return self.savings
        predicted = self.context.predicted_cached_tokens if self.context is not None else 0
        cached, (order, dropped, _, hints) = usage.cached_tokens, self.savings
        if cached is not None and cached < predicted:
            order *= cached / predicted
        return Savings(order, dropped, float(usage.reused_tokens or 0), hints)

    def response_headers(self, detection: Detection) -> RawHeaders:
        """Return headers that tell the client of it."""
        headers = [
            (b"x-ragboost-documents", b"%d" % self.num_documents),
            (b"x-ragboost-documents-dropped", b"%d" % self.num_dropped),
            (b"x-ragboost-overhead-ms", b"%.3f" % (self.seconds * 1000)),
        ]
        if detection.frame:
            headers.append((b"x-ragboost-frame", detection.frame.encode()))
        if self.bypass is not None:
            headers.append((b"x-ragboost-bypass", self.bypass.reason.encode()))
        if self.cache_break is not None:
            headers.append((b"x-ragboost-cache-break", self.cache_break.header))
        return headers

    def notes(self, detection: Detection) -> dict[str, str | int | float | None]:
        """Return figures for the access log and the span."""
        return {
            "documents": self.num_documents,
            "documents_dropped": self.num_dropped,
            "detection": detection.name,
            "frame": detection.frame or None,
            "bypass": self.bypass.reason if self.bypass else None,
            "cache_break": str(self.cache_break.cause) if self.cache_break else None,
            "overhead_ms": round(self.seconds * 1000, 3),
        }

    def receipt(self, usage: Usage, detection: Detection, *, predicted_tokens: int) -> bytes:
        """Return the JSON object that says what the request used and saved; of its tokens so many
        should have been cached."""
        fields: dict[str, Any] = {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "predicted_cached_tokens": predicted_tokens,
            "dropped_tokens": self.dropped_tokens,
            "saved_tokens": round(self.saved(usage).net),
            "detection": detection.name,
            "documents": detection.num_documents,
        }
        if detection.frame:
            fields["frame"] = detection.frame
        if (bought := usage.bought_tokens(self.bought_tokens)) is not None:
            fields["bought_tokens"] = bought
            fields["reused_tokens"] = usage.reused_tokens
            fields["recomputed_tokens"] = usage.recomputed_tokens or 0
        if self.cache_break is not None:
            fields["cache_break"] = self.cache_break.as_json()
        return msgspec.json.encode(fields)

    def mapper(self) -> AnswerMapper | None:
        """Return what maps the citations of one answer."""
        if self.citations is None:
            return None
        return AnswerMapper(self.citations, continued=self.continued)


class Answer(NamedTuple):
    """The end of a request."""

    endpoint: str  # that the client asked
    team: str  # of the client's API key
    backend: Backend  # that answered, or was asked last
    predicted_tokens: int  # that its prefix cache should have held
    status: int  # 0 without a response
    outcome: str
    usage: Usage | None  # as far as it was reported
    # On the clock of `time.perf_counter`: the request's head, the first byte of the response's
    # body, the end; None where it did not come to that: the client left, or a bug.
    started: float
    first_byte: float | None
    ended: float | None

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_byte is None else self.first_byte - self.started


Observer = Callable[[ParsedRequest, SentRequest, Answer], Awaitable[None]]
"""Learns from a completion that has ended, well or not, or tells of it; its client has the whole
response."""
