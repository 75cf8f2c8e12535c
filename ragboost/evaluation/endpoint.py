"""Ask an OpenAI-compatible endpoint: one chat completion at a time per connection, with retries."""

import http.client
import json
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, closing
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ragboost.errors import (
    BackendConnectionError,
    BackendStatusError,
    BackendTimeoutError,
    ConfigError,
)
from ragboost.evaluation.prompts import Messages

_ROUTE = "/chat/completions"
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_OF_THE_PROMPT = frozenset({400, 413, 422})
_MAX_RESPONSE_BYTES = 16 * 1024 * 1024
_MAX_WAIT_S = 60.0
_FIRST_WAIT_S = 0.5


class ModelAnswer(NamedTuple):
    """An answer with the endpoint's usage; 0 where it reports none."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class RefusedPromptError(BackendStatusError):
    """The endpoint refused one prompt, or answered it with something else than a completion."""


class RefusedEndpointError(BackendStatusError):
    """The endpoint refuses every request: a wrong key, model or path."""


class ChatEndpoint:
    """An endpoint, with or without `/v1` and `/chat/completions`, and a model; thread-safe. A null
    in `body` removes a field."""

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
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"an endpoint must begin with http:// or https://, got {url!r}")
        path = parts.path.rstrip("/")
        if not path.endswith(_ROUTE):
            path = (path or "/v1") + _ROUTE
        self._target = path + (f"?{parts.query}" if parts.query else "")
        self.where = f"{parts.scheme}://{parts.hostname}:{parts.port or ''}".rstrip(":") + path
        self._fields = {"model": model, "max_tokens": max_tokens, "temperature": 0, **(body or {})}
        self._headers = {"content-type": "application/json", "user-agent": "ragboost-eval-order"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        is_https = parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_https else http.client.HTTPConnection
        self._connect = partial(kind, parts.hostname, parts.port, timeout=timeout_s)
        self._idle: deque[http.client.HTTPConnection] = deque()
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._not_before = 0.0  # a rate limit holds for all threads

    def payload(self, messages: Messages) -> dict[str, Any]:
        fields = {name: value for name, value in self._fields.items() if value is not None}
        return {**fields, "messages": [{"role": r, "content": text} for r, text in messages]}

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def ask(self, messages: Messages) -> ModelAnswer:
        """Return the answer to a conversation; wait and try again while the endpoint is busy."""
        body = json.dumps(self.payload(messages)).encode("utf-8", "replace")
        for attempt in range(1, self._attempts + 1):
            self._wait()
            delay_s = None
            try:
                status, retry_after, text = self._post(body)
                if status == 200:
                    return self._read(text)
                error: Exception = self._refusal(status, text)
                if status not in _PASSING:
                    raise error
                delay_s = _seconds(retry_after)
            except TimeoutError:
                problem = f"{self.where} did not answer within {self._timeout_s:g} s"
                error = BackendTimeoutError(problem)
            except (OSError, http.client.HTTPException) as failure:
                error = BackendConnectionError(f"cannot reach {self.where}: {failure!r}")
            if self._stopped.is_set():
                break
            if attempt < self._attempts:
                self._defer(_FIRST_WAIT_S * 2 ** (attempt - 1) if delay_s is None else delay_s)
        raise error

    def probe(self) -> None:
        try:
            with closing(self._connect()) as connection:
                connection.connect()
        except OSError as problem:
            raise BackendConnectionError(f"cannot reach {self.where}: {problem}") from None

    def _post(self, body: bytes) -> tuple[int, str, bytes]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        with ExitStack() as stack:
            stack.callback(connection.close)
            connection.request("POST", self._target, body, self._headers)
            response = connection.getresponse()
            text = response.read(_MAX_RESPONSE_BYTES + 1)
            if len(text) > _MAX_RESPONSE_BYTES:
                raise http.client.HTTPException("the response is longer than 16 MiB")
            stack.pop_all()
        self._idle.append(connection)
        return response.status, response.getheader("retry-after", ""), text

    def _read(self, text: bytes) -> ModelAnswer:
        try:
            value = json.loads(text)
            message = value["choices"][0]["message"]
            usage = value.get("usage") or {}
            details = usage.get("prompt_tokens_details") or {}
            return ModelAnswer(
                message.get("content") or "",
                int(usage.get("prompt_tokens") or 0),
                int(usage.get("completion_tokens") or 0),
                int(details.get("cached_tokens") or 0),
            )
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise RefusedPromptError(
                f"{self.where} returned no chat completion ({error!r}): {text[:200]!r}"
            ) from None

    def _refusal(self, status: int, text: bytes) -> BackendStatusError:
        try:
            problem = json.loads(text)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            problem = text[:200].decode("utf-8", "replace")
        kind: type[BackendStatusError] = RefusedEndpointError
        if status in _PASSING:
            kind = BackendStatusError
        elif status in _OF_THE_PROMPT:
            kind = RefusedPromptError
        return kind(f"{self.where} answered {status}: {problem}")

    def _defer(self, delay_s: float) -> None:
        with self._lock:
            until = time.monotonic() + min(max(delay_s, 0.0), _MAX_WAIT_S)
            self._not_before = max(self._not_before, until)

    def _wait(self) -> None:
        while not self._stopped.is_set():
            with self._lock:
                left = self._not_before - time.monotonic()
            if left <= 0:
                return
            self._stopped.wait(left)


def _seconds(retry_after: str) -> float | None:
    try:
        return float(retry_after)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(retry_after).timestamp() - time.time()
    except (TypeError, ValueError):
        return None
