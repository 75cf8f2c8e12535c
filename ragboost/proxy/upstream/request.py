"""A request as its backend gets it, with what the proxy reports about it afterwards."""

from typing import NamedTuple

from ragboost.booster.tenants import Tenant
from ragboost.cache_sync.tracked_request import TrackedRequest
from ragboost.context import Context
from ragboost.proxy.upstream.backends import Backend
from ragboost.rewriting.headers import RawHeaders
from ragboost.rewriting.parsed_request import Bypass
from ragboost.rewriting.rewriter import BoostResult


class UpstreamRequest(NamedTuple):
    """A request to send to a backend.

    Attributes:
        body: the bytes to send.
        headers: to send, without the request id.
        model: named by the client; empty if unknown.
        bypass: the reason for which nothing was boosted; None if something was.
        result: of rewriting; None if the body is forwarded as it came.
        tenant: whose context index was used, or None.
        tracked: how its cache events are followed; None if nothing was boosted.
        history: digest of the rewritten history, for a conversation without a name; or empty.
        is_usage_added: the response's usage event was asked for by the proxy, not the client.
        seconds: the time that preparing it took, without waiting; None if it is no completion.
        dropped_tokens: of the documents that the payload has already and that are not sent.
        worker: the worker of this proxy that keeps its conversation, and gets it instead; or None.
    """

    body: bytes
    headers: RawHeaders
    model: str = ""
    bypass: Bypass | None = None
    result: BoostResult | None = None
    tenant: Tenant | None = None
    tracked: TrackedRequest | None = None
    history: bytes = b""
    is_usage_added: bool = False
    seconds: float | None = None
    dropped_tokens: int = 0
    worker: Backend | None = None

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
