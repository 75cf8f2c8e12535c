"""A request on its way through the proxy: before it has a backend, and as its backend gets it."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ragboost.cache_sync.tracked_request import TrackedRequest
from ragboost.context import Context
from ragboost.proxy.routing.assignment import Assignment
from ragboost.rewriting.body import JsonBody
from ragboost.rewriting.conversations import HistoryDelta
from ragboost.rewriting.histories import ChainMatch
from ragboost.rewriting.rewriter import Rewritten
from ragboost.rewriting.tenants import Tenant
from ragboost.types import Request


class ParsedRequest(NamedTuple):
    """A request before it has a backend.

    Attributes:
        raw: the client's bytes.
        payload: the same, parsed; None if they are no JSON object.
        tenant: whose context indexes will be used; None: nothing will be boosted.
        front: finds the documents to plan with, as `Rewriter.front`.
        session: name of the conversation, unique within the tenant; None: it has no name.
        history: hash of what the engine was sent for its history; empty: not known.
    """

    raw: bytes
    payload: JsonBody | None = None
    tenant: Tenant | None = None
    front: Callable[[], Request | None] = lambda: None
    session: str | None = None
    history: bytes = b""


Place = Callable[[ParsedRequest], Awaitable[Assignment]]
"""Gives a request its backend when its turn has come; the ticket has been started."""


class UpstreamRequest(NamedTuple):
    """A request as the backend gets it.

    Attributes:
        ticket: where it goes.
        body: the bytes to send.
        model: that the caller asked for; empty if unknown.
        rewritten: what was done; None if the body was not understood.
        tenant: whose context index was used, or None.
        is_usage_added: the answer's usage event is ours, not the caller's.
        bypass: why nothing was boosted; None if something was.
        seconds: what it took, without waiting for its turn.
        learned: what it adds to the `past` that the caller gave.
        match: the history of a request without a session id; None: it names one, or has none.
        tried: the same of what shadow mode would have sent.
        followed: how the engine will call it; None if nothing was boosted.
    """

    ticket: Assignment
    body: bytes
    model: str = ""
    rewritten: Rewritten | None = None
    tenant: Tenant | None = None
    is_usage_added: bool = False
    bypass: str | None = None
    seconds: float = 0.0
    learned: HistoryDelta = HistoryDelta()
    match: ChainMatch | None = None
    tried: ChainMatch | None = None
    followed: TrackedRequest | None = None

    @property
    def added_tag(self) -> str | None:
        """The id for the engine's events that the proxy has added; None: none, or the caller's."""
        tag = self.followed.engine_id if self.followed else None
        return tag.name if tag is not None and tag.is_generated else None

    @property
    def context(self) -> Context | None:
        """What was boosted, or None."""
        return self.rewritten.context if self.rewritten else None

    @property
    def notes(self) -> dict[str, str | int | float | None]:
        """For the access log and the span."""
        rewritten = self.rewritten
        return {
            "documents": rewritten.num_documents if rewritten else 0,
            "documents_dropped": rewritten.num_dropped if rewritten else 0,
            "bypass": self.bypass,
            "overhead_ms": round(self.seconds * 1000, 3),
        }

    @property
    def predicted_cached_tokens(self) -> int:
        """What the context index expects in the backend's prefix cache."""
        return self.context.predicted_cached_tokens if self.context else 0
