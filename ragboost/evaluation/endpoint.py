"""Ask an OpenAI-compatible endpoint for chat completions, whole with retries, or streamed."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import closing
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ragboost.config import BackendSettings
from ragboost.errors import (
    BackendConnectionError,
    BackendRefusedError,
    BackendStatusError,
    BackendTimeoutError,
    ConfigError,
)
from ragboost.evaluation.arms import Messages
from ragboost.proxy.upstream.backend import Backend
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


_ROUTE = "/chat/completions"
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_OF_THE_PROMPT = frozenset({400, 413, 422})
_MAX_RESPONSE_BYTES = 16 * 1024 * 1024
_MAX_WAIT_S = 60.0
_FIRST_WAIT_S = 0.5


class RefusedPromptError(BackendStatusError):
    """The endpoint refused one prompt, or answered it with something else than a completion."""


class RefusedEndpointError(BackendStatusError):
    """The endpoint refuses every request: a wrong key, model or path."""


class ChatEndpoint:
    """An endpoint, with or without `/v1` and `/chat/completions`, and a model; used on one event
    loop. A null in `body` removes a field."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        api_key: str = "",
        body: Mapping[str, Any] | None = None,
        max_tokens: int = 64,
        timeout_s: float = 120.0,
        attempts: int = 6,
    ) -> None:
        try:
            parts = urlsplit(url)
            settings = BackendSettings(
                url=f"{parts.scheme}://{parts.netloc}",
                connect_timeout_s=timeout_s,
                read_timeout_s=timeout_s,
            )
        except ValueError:
            problem = f"an endpoint must begin with http:// or https:// and a host, got {url!r}"
            raise ConfigError(problem) from None
        path = parts.path.rstrip("/")
        if not path.endswith(_ROUTE):
            path = (path or "/v1") + _ROUTE
        self._target = path + (f"?{parts.query}" if parts.query else "")
        self._backend = Backend(settings)
        self.where = self._backend.url + path
        self._defaults = {"model": model, "max_tokens": max_tokens, "temperature": 0}
        self._fields = body or {}
        self._headers = [
            (b"content-type", b"application/json"),
            (b"user-agent", b"ragboost"),
        ]
        if api_key:
            self._headers.append((b"authorization", b"Bearer " + api_key.encode()))
        self._attempts = attempts
        self._has_answered = False
        self._not_before = 0.0  # a rate limit holds for all requests

    def payload(self, messages: Messages) -> dict[str, Any]:
        return self.body([{"role": role, "content": text} for role, text in messages])

    def body(self, messages: Sequence[Mapping[str, str]], **fields: Any) -> dict[str, Any]:
        """Return a request's body with `fields`, unless those given for all requests differ."""
        body = {**self._defaults, **fields, **self._fields, "messages": messages}
        return {name: value for name, value in body.items() if value is not None}

    async def aclose(self) -> None:
        await self._backend.aclose()

    async def ask(self, messages: Messages) -> str:
        """Return the answer to a conversation; wait and try again while the endpoint is busy."""
        payload = self.payload(messages)
        for attempt in range(1, self._attempts + 1):
            # Others may have moved it meanwhile.
            while (left := self._not_before - time.monotonic()) > 0:  # noqa: ASYNC110
                await asyncio.sleep(left)
            delay_s = None
            try:
                with closing(await self._post(payload)) as response:
                    text = await _read_all(response)
                if response.status == 200:
                    return self._read(text)
                error: Exception = self._refusal(response.status, text)
                if response.status not in _PASSING:
                    raise error
                delay_s = _seconds(get_header(response.headers, b"retry-after") or "")
            except BackendTimeoutError as failure:  # again, it would take as long
                problem = f"{self.where}: {failure}; --timeout gives it more"
                raise BackendTimeoutError(problem) from None
            except BackendConnectionError as failure:
                error = type(failure)(f"cannot reach {self.where}: {failure}")
                if isinstance(failure, BackendRefusedError) and not self._has_answered:
                    raise error from None
            delay_s = _FIRST_WAIT_S * 2 ** (attempt - 1) if delay_s is None else delay_s
            until = time.monotonic() + min(max(delay_s, 0.0), _MAX_WAIT_S)
            self._not_before = max(self._not_before, until)
        raise error

    async def ask_streamed(self, body: Mapping[str, Any]) -> StreamedAnswer:
        """Ask once for a body's answer as a stream, and read it."""
        started = time.perf_counter()
        with closing(await self._post({**body, **STREAMED})) as response:
            if response.status != 200:
                raise self._refusal(response.status, await _read_all(response))
            return await read_streamed(response, started=started)

    async def _post(self, body: Mapping[str, Any]) -> UpstreamResponse:
        data = json.dumps(body).encode("utf-8", "replace")
        response = await self._backend.request(
            "POST", self._target, headers=self._headers, body=data
        )
        self._has_answered = True
        return response

    def _read(self, text: bytes) -> str:
        try:
            content = json.loads(text)["choices"][0]["message"].get("content") or ""
            if isinstance(content, list):
                content = "".join(part.get("text") or "" for part in content)
            return str(content)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise RefusedPromptError(
                f"{self.where} returned no chat completion ({error!r}): {text[:200]!r}"
            ) from None

    def _refusal(self, status: int, text: bytes) -> BackendStatusError:
        try:
            problem = json.loads(text)["error"]["message"]
        except (ValueError, KeyError, TypeError, RecursionError):
            problem = text[:200].decode("utf-8", "replace")
        kind: type[BackendStatusError] = RefusedEndpointError
        if status in _PASSING:
            kind = BackendStatusError
        elif status in _OF_THE_PROMPT:
            kind = RefusedPromptError
        return kind(f"{self.where} answered {status}: {problem}")


async def _read_all(response: UpstreamResponse) -> bytes:
    text = bytearray()
    while data := await response.read():
        text += data
        if len(text) > _MAX_RESPONSE_BYTES:
            raise BackendConnectionError("the response is longer than 16 MiB")
    return bytes(text)


def _seconds(retry_after: str) -> float | None:
    try:
        return float(retry_after)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(retry_after).timestamp() - time.time()
    except (TypeError, ValueError):
        return None
