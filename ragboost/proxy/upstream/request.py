"""A request as its backend gets it, with what the proxy reports about it afterwards."""

from typing import NamedTuple

from ragboost.cache_sync.tracked_request import TrackedRequest
from ragboost.context import Context
from ragboost.proxy.upstream.backends import Backend
from ragboost.rewriting.headers import RawHeaders
from ragboost.rewriting.parsed_request import Bypass
from ragboost.rewriting.rewriter import BoostResult


class UpstreamRequest(NamedTuple):
    """A request to send to a backend."""

    body: bytes
    headers: RawHeaders  # without the request id
    model: str = ""  # named by the client
    bypass: Bypass | None = None  # why nothing was boosted
    result: BoostResult | None = None  # None: the body is forwarded as it came
    tracked: TrackedRequest | None = None  # None: nothing was boosted
    history: bytes = b""  # digest of the rewritten history, for a conversation without a name
    is_usage_added: bool = False  # the proxy asked for the response's usage, not the client
    seconds: float | None = None  # to prepare it, without waiting; None: no completion
    dropped_tokens: int = 0  # of documents that the payload has already and that are not sent
    worker: Backend | None = None  # of this proxy, which keeps the conversation and gets this

    @property
    def context(self) -> Context | None:
        """The boosted documents, or None."""
        return self.result.context if self.result is not None else None

    @property
    def response_headers(self) -> RawHeaders:
        """The `x-ragboost-*` headers of the response to a completion."""
        if self.seconds is None:
            return ()
        result = self.result
        headers = [
            (b"x-ragboost-documents", b"%d" % (result.num_documents if result else 0)),
            (b"x-ragboost-documents-dropped", b"%d" % (result.num_dropped if result else 0)),
            (b"x-ragboost-overhead-ms", b"%.3f" % (self.seconds * 1000)),
        ]
        if self.bypass is not None:
            headers.append((b"x-ragboost-bypass", self.bypass.reason.encode()))
        return headers

    @property
    def notes(self) -> dict[str, str | int | float | None]:
        """Facts for the access log and the span."""
        result = self.result
        return {
            "documents": result.num_documents if result else 0,
            "documents_dropped": result.num_dropped if result else 0,
            "bypass": self.bypass.reason if self.bypass else None,
            "overhead_ms": round((self.seconds or 0.0) * 1000, 3),
        }
