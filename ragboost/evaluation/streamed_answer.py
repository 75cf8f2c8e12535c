"""Read one streamed chat completion: its text, its usage and when it began."""

import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, NamedTuple

from ragboost.errors import BackendStatusError
from ragboost.proxy.upstream.client import UpstreamResponse
from ragboost.requests.headers import get_header
from ragboost.requests.wires.usage import Usage, read_usage

STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
_MAX_LINE_BYTES = 4 * 1024 * 1024


class StreamedAnswer(NamedTuple):
    text: str
    usage: Usage
    ttft_s: float  # from sending to the first token, or to the end of an answer without one
    documents_dropped: int = 0  # that a proxy did not send again


async def read_streamed(response: UpstreamResponse, *, started: float) -> StreamedAnswer:
    """Read the response to a `STREAMED` request that was sent at `started`."""
    ttft_s, usage = 0.0, None
    answer: list[str] = []
    async for event in _events(response):
        usage = read_usage(event) or usage
        for text in _texts(event):
            ttft_s = ttft_s or time.perf_counter() - started
            answer.append(text)
    if usage is None:
        raise BackendStatusError("the stream ended without usage")
    dropped = get_header(response.headers, b"x-ragboost-documents-dropped") or ""
    num_dropped = int(dropped) if dropped.isdecimal() and len(dropped) < 10 else 0
    ttft_s = ttft_s or time.perf_counter() - started
    return StreamedAnswer("".join(answer), usage, ttft_s, num_dropped)


async def _events(response: UpstreamResponse) -> AsyncIterator[dict[str, Any]]:
    rest = b""
    while data := await response.read():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                yield _decoded(line)
        if len(rest) > _MAX_LINE_BYTES:
            raise BackendStatusError(f"an event has more than {_MAX_LINE_BYTES} bytes")
    if rest.startswith(b"data: {"):
        yield _decoded(rest)


def _texts(event: Mapping[str, Any]) -> Iterator[str]:
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        delta = choice.get("delta") if isinstance(choice, dict) else None
        text = delta.get("content") if isinstance(delta, dict) else None
        if isinstance(text, str) and text:
            yield text


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line.removeprefix(b"data: "))
    except (ValueError, RecursionError) as error:
        raise BackendStatusError(f"an event is not JSON: {error}") from None
    return event if isinstance(event, dict) else {}
