"""Make OpenTelemetry spans of completions, named by the GenAI conventions where these exist.

Uses the API only: the operator brings an SDK and its exporters, for example by starting the proxy
with `opentelemetry-instrument`.
"""

from collections.abc import Mapping
from typing import Any

from ragboost.errors import import_extra
from ragboost.proxy.asgi.client_exchange import ClientExchange
from ragboost.requests.headers import decode_value

_OPERATIONS = {
    **dict.fromkeys(("chat", "messages", "responses", "session_chat"), "chat"),
    "completions": "text_completion",
}
_NAMES = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
}
_CONTEXT_HEADERS = ("traceparent", "tracestate", "baggage")


class Tracing:
    """Makes a span per completion, a child of the client's span and the parent of the backend's."""

    def __init__(self) -> None:
        self._trace = import_extra("opentelemetry.trace", extra="otel")
        self._propagate = import_extra("opentelemetry.propagate", extra="otel")
        self._tracer = self._trace.get_tracer("ragboost")

    def start(self, request: ClientExchange) -> Any:
        operation = _OPERATIONS.get(request.endpoint)
        if operation is None:
            return None
        carrier = {
            name.decode("latin-1"): decode_value(value)
            for name, value in request.headers
            if name.decode("latin-1") in _CONTEXT_HEADERS
        }
        span = self._tracer.start_span(
            operation,
            context=self._propagate.extract(carrier),
            kind=self._trace.SpanKind.CLIENT,
            attributes={"gen_ai.operation.name": operation},
        )
        context = self._trace.set_span_in_context(span)
        self._propagate.inject(request.trace_headers, context=context)
        return span

    def end(self, span: Any, request: ClientExchange) -> None:
        if span is None:
            return
        operation = _OPERATIONS[request.endpoint]
        span.update_name(f"{operation} {request.model}".strip())
        attributes: dict[str, Any] = {
            "gen_ai.request.model": request.model,
            "http.response.status_code": request.status,
            **_attributes(request.notes),
        }
        if request.first_byte is not None:
            attributes["ragboost.first_byte_s"] = request.first_byte - request.started
        if request.outcome != "ok":
            attributes["error.type"] = request.outcome
            span.set_status(self._trace.StatusCode.ERROR)
        span.set_attributes(attributes)
        span.end()


def _attributes(notes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        _NAMES.get(name, f"ragboost.{name}"): value
        for name, value in notes.items()
        if value is not None
    }
