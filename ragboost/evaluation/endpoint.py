"""Ask an OpenAI-compatible endpoint: one chat completion at a time per thread, with retries.

Knows HTTP, `usage` and rate limits. Does not know questions or scores.
"""

import http.client
import json
import threading
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
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
    """An endpoint and a model. Thread-safe: each thread has its own connection.

    Args:
        url: with or without `/v1` and `/chat/completions`.
        api_key: sent as a bearer token; empty: none.
        body: further fields of the request; null removes a field.

    Raises:
        ConfigError: the URL is not one of HTTP.
    """

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
        self._parts = parts
        self._target = path + (f"?{parts.query}" if parts.query else "")
        self.where = f"{parts.scheme}://{parts.hostname}:{parts.port or ''}".rstrip(":") + path
        self._fields = {"model": model, "max_tokens": max_tokens, "temperature": 0, **(body or {})}
        self._headers = {"content-type": "application/json", "user-agent": "ragboost-eval-order"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._local = threading.local()
        self._open: set[http.client.HTTPConnection] = set()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._not_before = 0.0  # a rate limit holds for all threads

    def payload(self, messages: Messages) -> dict[str, Any]:
        """Return the body of a request, which is what its answer depends on."""
        fields = {name: value for name, value in self._fields.items() if value is not None}
        return {**fields, "messages": [{"role": r, "content": text} for r, text in messages]}

    def stop(self) -> None:
        """End all waits; requests that are waiting fail."""
        self._stopped.set()

    def close(self) -> None:
        """Close the connections of all threads, none of which may be asking."""
        with self._lock:
            kept, self._open = self._open, set()
        for connection in kept:
            connection.close()

    def ask(self, messages: Messages) -> ModelAnswer:
        """Return the answer to a conversation; wait and try again while the endpoint is busy."""
        body = json.dumps(self.payload(messages)).encode("utf-8", "replace")
        for attempt in range(1, self._attempts + 1):
            self._wait()
            try:
                status, headers, text = self._post(body)
                if status == 200:
                    return self._read(text)
                error: Exception = self._refusal(status, text)
                if status not in _PASSING:
                    raise error
                self._defer(_retry_after(headers), attempt)
            except TimeoutError:
                self._close()
                error = BackendTimeoutError(
                    f"{self.where} did not answer within {self._timeout_s:g} s"
                )
                self._defer(None, attempt)
            except (OSError, http.client.HTTPException) as problem:
                self._close()
                error = BackendConnectionError(f"cannot reach {self.where}: {problem!r}")
                self._defer(None, attempt)
            if self._stopped.is_set():
                break
        raise error

    def probe(self) -> None:
        """Connect once."""
        try:
            self._connection().connect()
        except OSError as problem:
            raise BackendConnectionError(f"cannot reach {self.where}: {problem}") from None
        finally:
            self._close()

    def _post(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        connection = self._connection()
        connection.request("POST", self._target, body, self._headers)
        response = connection.getresponse()
        text = response.read(_MAX_RESPONSE_BYTES + 1)
        if len(text) > _MAX_RESPONSE_BYTES:
            self._close()
            raise http.client.HTTPException("the response is longer than 16 MiB")
        headers = {name.lower(): value for name, value in response.getheaders()}
        return response.status, headers, text

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

    def _connection(self) -> http.client.HTTPConnection:
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if kept is None:
            is_https = self._parts.scheme == "https"
            kind = http.client.HTTPSConnection if is_https else http.client.HTTPConnection
            host = self._parts.hostname or ""
            kept = self._local.connection = kind(host, self._parts.port, timeout=self._timeout_s)
            with self._lock:
                self._open.add(kept)
        return kept

    def _close(self) -> None:
        kept = getattr(self._local, "connection", None)
        if kept is not None:
            kept.close()
            with self._lock:
                self._open.discard(kept)
            self._local.connection = None

    def _defer(self, wanted_s: float | None, attempt: int) -> None:
        """Let no thread ask for a while: as long as the endpoint wants, within bounds."""
        if attempt >= self._attempts:
            return
        wait = _FIRST_WAIT_S * 2 ** (attempt - 1) if wanted_s is None else wanted_s
        with self._lock:
            until = time.monotonic() + min(max(wait, 0.0), _MAX_WAIT_S)
            self._not_before = max(self._not_before, until)

    def _wait(self) -> None:
        while not self._stopped.is_set():
            with self._lock:
                left = self._not_before - time.monotonic()
            if left <= 0:
                return
            self._stopped.wait(left)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `retry-after`, which may be a number or a date; None without it."""
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(value).timestamp() - time.time()
    except (TypeError, ValueError):
        return None
