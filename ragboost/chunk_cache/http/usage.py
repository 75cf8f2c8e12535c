"""Write into a response, JSON or server-sent events, where its prompt's tokens came from."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ragboost.chunk_cache.core.request import PARAMS_KEY, PromptReport
from ragboost.chunk_cache.http.asgi import Message, Send, read_json, with_body_length
from ragboost.chunk_cache.http.reports import ReportInbox

_MAX_EVENT_BYTES = 4 << 20
_REPORT_TIMEOUT_S = 1.0
_USAGE = re.compile(rb'"usage":\s*\{')
_LAST_USAGE = re.compile(rb'"choices":\s*\[\s*\]')


def with_report(usage: Mapping[str, Any], report: PromptReport) -> dict[str, Any]:
    """Return a usage whose cached tokens are the exact ones, with the origins of all beside it."""
    details = usage.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    return {
        **usage,
        "prompt_tokens_details": {**details, "cached_tokens": report.origins.exact},
        PARAMS_KEY: report.origins._asdict(),
    }


class UsageWriter:
    """Sends a response with the origins in its usage; other bytes are sent as they come."""

    def __init__(self, send: Send, inbox: ReportInbox, ticket: int) -> None:
        self.report: PromptReport | None = None  # the engine's, once it has come
        self._send, self._inbox, self._ticket = send, inbox, ticket
        self._start: Message | None = None  # of a JSON response, kept back for its length
        self._is_stream = False
        self._unsent = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = dict(message["headers"]).get(b"content-type", b"")
            self._is_stream = kind.startswith(b"text/event-stream")
            if kind.startswith(b"application/json") and message["status"] == 200:
                self._start = message
            else:
                await self._send(message)
        elif self._start is not None:
            await self._send_json(message, self._start)
        elif self._is_stream:
            await self._send_events(message)
        else:
            await self._send(message)

    async def wait(self, *, timeout_s: float) -> None:
        if self.report is None:
            self.report = await self._inbox.take(self._ticket, timeout_s=timeout_s)

    async def _send_json(self, message: Message, start: Message) -> None:
        self._unsent += message.get("body", b"")
        if message.get("more_body"):
            return
        body = self._unsent
        fields = read_json(body)
        if fields is not None:
            params = fields.get("kv_transfer_params")
            report = params.pop(PARAMS_KEY, None) if isinstance(params, dict) else None
            if report is not None:
                self.report = PromptReport.read(report)
                fields["kv_transfer_params"] = params or None
            await self.wait(timeout_s=_REPORT_TIMEOUT_S)
            if self._write(fields) or report is not None:
                body = msgspec.json.encode(fields)
        await self._send({**start, "headers": with_body_length(start, len(body))["headers"]})
        await self._send({**message, "body": body})

    async def _send_events(self, message: Message) -> None:
        data, is_last = self._unsent + message.get("body", b""), not message.get("more_body")
        end = data.rfind(b"\n\n") + 2
        if is_last or len(data) > _MAX_EVENT_BYTES:
            whole, self._unsent = data, b""
        else:
            whole, self._unsent = (data[:end], data[end:]) if end > 1 else (b"", data)
        if _USAGE.search(whole):
            # Only the last usage, which has no choices, can have the report: others do not wait.
            await self.wait(timeout_s=_REPORT_TIMEOUT_S if _LAST_USAGE.search(whole) else 0)
            whole = b"\n\n".join(map(self._write_event, whole.split(b"\n\n")))
        if whole or is_last:
            await self._send({**message, "body": whole})

    def _write_event(self, event: bytes) -> bytes:
        head, separator, data = event.partition(b"data:")
        fields = read_json(data.strip()) if separator and not head.strip() else None
        if fields is None or not self._write(fields):
            return event
        return b"data: " + msgspec.json.encode(fields) + event[len(event.rstrip()) :]

    def _write(self, fields: dict[str, Any]) -> bool:
        usage = fields.get("usage")
        if self.report is None or not isinstance(usage, dict):
            return False
        fields["usage"] = with_report(usage, self.report)
        return True
