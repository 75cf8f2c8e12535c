"""Ask a backend what RAGBoost needs of it, and say what to change.

Sends a handful of small requests. Changes nothing, and names no flag of an engine that it does not
recognise.
"""

import asyncio
import json
import os
import re
import socket
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ragboost.cache_sync.discovery import DISCOVERY_PATHS, EventSource, find_sources
from ragboost.config import Settings
from ragboost.errors import BackendError, ConfigError
from ragboost.proxy.upstream.backends import Backend, Backends

_TIMEOUT_S = 60.0
_EVENT_TIMEOUT_S = 2.0
_ZMQ_GREETING = b"\xff"
_ADDRESSES = '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"'
_EVENTS_JSON = f'{{"enable_kv_cache_events": true, "publisher": "zmq", {_ADDRESSES}}}'
_SGLANG_EVENTS_JSON = f'{{"publisher": "zmq", {_ADDRESSES}}}'
_PREFIX_CACHING = re.compile(
    r'^vllm:cache_config_info\{.*enable_prefix_caching="(\w+)"', re.MULTILINE
)

# What to change, by what is missing and by engine; "" stands for any other one.
_FIXES: Mapping[str, Mapping[str, str]] = {
    "usage": {
        "vllm": "start vLLM with --enable-prompt-tokens-details",
        "sglang": "start SGLang with --enable-cache-report",
        "": "let the server report usage.prompt_tokens_details.cached_tokens",
    },
    "prefix cache": {
        "vllm": "start vLLM without --no-enable-prefix-caching",
        "sglang": "start SGLang without --disable-radix-cache",
        "": "turn the server's prefix cache on",
    },
    "documents": {
        "vllm": "use a chat template that renders `documents` (--chat-template FILE), or send "
        "documents in the `ragboost` object",
        "sglang": "use a chat template that renders `documents` (--chat-template FILE) and send "
        "them in `chat_template_kwargs`, or send documents in the `ragboost` object",
        "": "send documents in the `ragboost` object of the body",
    },
    "tokenizer": {"": "none is needed: lengths are estimated, and corrected by usage"},
    "KV events": {
        "vllm": f"start vLLM with --kv-events-config '{_EVENTS_JSON}'",
        "sglang": f"start SGLang with --kv-events-config '{_SGLANG_EVENTS_JSON}'",
        "ragboost": "start the engine with --kv-events-endpoint tcp://127.0.0.1:5557",
        "": "none is known for this server; the cache is modelled from what is sent",
    },
}

Status = Literal["ok", "advice", "failed"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        backend: name of the backend.
        check: what was looked at.
        status: `ok`; `advice`: it works, and more would be better; `failed`: it does not work.
        message: what was found.
        fix: what to change; empty if it is fine.
    """

    backend: str
    check: str
    status: Status
    message: str
    fix: str = ""

    def as_json(self) -> dict[str, str]:
        """For `--json`."""
        return asdict(self)


async def examine(settings: Settings, *, kv_events: str | None = None) -> list[Finding]:
    """Check every backend of the settings.

    Args:
        settings: their addresses and keys.
        kv_events: a `tcp://host:port` at which the first backend publishes its cache events.
    """
    findings = []
    for at, backend in enumerate(Backends.of(settings).all):
        findings += await _Examination(backend, kv_events if at == 0 else None).run()
    return findings


def exit_code(findings: list[Finding]) -> int:
    """0 if everything works, with or without advice; 1 if something does not."""
    return int(any(finding.status == "failed" for finding in findings))


class _Examination:
    """The checks of one backend, in an order in which each can rely on those before it."""

    def __init__(self, backend: Backend, kv_events: str | None) -> None:
        self._backend = backend
        self._kv_events = kv_events
        self._engine = ""
        self._model = ""
        self._findings: list[Finding] = []

    async def run(self) -> list[Finding]:
        """All findings; only the first failure if the backend cannot be used at all."""
        if await self._reachable():
            self._engine = await self._recognise()
            if await self._completion():
                await self._documents()
                await self._tokenizer()
                await self._events()
        return self._findings

    def _note(self, check: str, status: Status, message: str, *, fix: str = "") -> None:
        if status != "ok" and not fix:
            fixes = _FIXES[check]
            fix = fixes.get(self._engine, fixes[""])
        self._findings.append(Finding(self._backend.name, check, status, message, fix))

    async def _reachable(self) -> bool:
        status, answer = await self._call("/v1/models")
        models = answer.get("data") if isinstance(answer, dict) else None
        if status == 200 and isinstance(models, list) and models:
            self._model = str(models[0].get("id", ""))
            self._note("reachable", "ok", f"{self._backend.url} serves {self._model}")
            return True
        if status in (401, 403):
            fix = "set backend.api_key (RAGBOOST_BACKEND__API_KEY)"
        elif status == 0:
            fix = "start the backend, or give its address: --backend URL"
        else:
            fix = "give the base URL of an OpenAI-compatible server: --backend URL"
        found = answer if status == 0 else f"GET /v1/models is a {status}"
        self._note("reachable", "failed", f"{self._backend.url}: {found}", fix=fix)
        return False

    async def _recognise(self) -> str:
        """`vllm`, `sglang`, `ragboost` (the embedded engine), or empty."""
        status, models = await self._call("/v1/models")
        owner = models["data"][0].get("owned_by") if status == 200 else None
        return owner if owner in ("vllm", "sglang", "ragboost") else ""

    async def _completion(self) -> bool:
        """Two requests with the same long beginning: the second one shows the prefix cache."""
        text = f"{uuid.uuid4()} " + "The quick brown fox jumps over the lazy dog. " * 80
        usage: dict[str, Any] = {}
        for question in ("One?", "Two?"):
            status, answer = await self._chat(text + question)
            if status != 200 or not isinstance(answer, dict):
                fix = "look into the backend's log"
                self._note("completion", "failed", f"a chat request is a {status}", fix=fix)
                return False
            usage = answer.get("usage") or {}
        self._note("completion", "ok", "chat requests are answered")
        details = usage.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens", usage.get("cached_tokens"))
        is_told = cached is not None
        self._note(
            "usage",
            "ok" if is_told else "advice",
            "cached tokens are reported" if is_told else "cached tokens are not reported",
        )
        await self._prefix_cache(cached, total=usage.get("prompt_tokens", 0))
        return True

    async def _prefix_cache(self, cached: int | None, *, total: int) -> None:
        """Whether repeated tokens are cached; where usage does not say, whether the cache is on."""
        check = "prefix cache"
        if cached:
            self._note(check, "ok", f"{cached} of {total} repeated tokens were cached")
        elif cached is not None:
            self._note(check, "failed", f"none of {total} repeated tokens was cached")
        elif (is_on := await self._has_prefix_cache()) is None:
            fix = "let the backend report cached tokens (see usage) and look again"
            self._note(check, "advice", "nothing shows whether it is on", fix=fix)
        elif is_on:
            self._note(check, "ok", "it is on; what it holds of a request is not reported")
        else:
            self._note(check, "failed", "it is switched off")

    async def _has_prefix_cache(self) -> bool | None:
        """What the engine says of its own settings; None: nothing that we know."""
        if self._engine == "sglang":
            status, answer = await self._call("/server_info")
            is_off = answer.get("disable_radix_cache") if isinstance(answer, dict) else None
            return not is_off if status == 200 and isinstance(is_off, bool) else None
        if self._engine == "vllm":
            _, metrics = await self._call("/metrics")
            found = _PREFIX_CACHING.search(metrics) if isinstance(metrics, str) else None
            return found[1] == "True" if found else None
        return None

    async def _documents(self) -> None:
        """Whether the chat template reads `documents`: the prompt is longer with them."""
        documents = {"documents": [{"title": "Zebra", "text": "A zebra has stripes. " * 20}] * 2}
        alone = await self._prompt_tokens()
        if await self._prompt_tokens(**documents) > alone + 20:
            self._note("documents", "ok", "the chat template renders the `documents` field")
        elif await self._prompt_tokens(chat_template_kwargs=documents) > alone + 20:
            found = "the chat template renders the `documents` of `chat_template_kwargs`"
            self._note("documents", "ok", found)
        else:
            self._note("documents", "advice", "the `documents` field does not reach the prompt")

    async def _prompt_tokens(self, **fields: Any) -> int:
        status, answer = await self._chat("How many stripes?", **fields)
        usage = answer.get("usage") if status == 200 and isinstance(answer, dict) else None
        return int((usage or {}).get("prompt_tokens") or 0)

    async def _tokenizer(self) -> None:
        body = {"model": self._model, "prompt": "How many tokens?"}
        status, answer = await self._call("/tokenize", body)
        if status == 200 and isinstance(answer, dict) and "tokens" in answer:
            self._note("tokenizer", "ok", "POST /tokenize answers")
        else:
            self._note("tokenizer", "advice", f"POST /tokenize is a {status}")

    async def _events(self) -> None:
        if self._kv_events is not None:
            if await _greets(self._kv_events):
                self._note("KV events", "ok", f"a ZeroMQ socket answers at {self._kv_events}")
            else:
                self._note("KV events", "failed", f"no ZeroMQ socket at {self._kv_events}")
            return
        for path in DISCOVERY_PATHS:
            status, answer = await self._call(path)
            sources = self._sources(answer) if status == 200 and isinstance(answer, dict) else []
            if sources and all(source.replay_endpoint for source in sources):
                self._note("KV events", "ok", f"GET {path} names {sources[0].endpoint}")
                return
            if sources:
                found = "there is no replay_endpoint: a lost message empties the mirror"
                self._note("KV events", "advice", found)
                return
        self._note("KV events", "advice", "the backend names no source of cache events")

    def _sources(self, answer: Mapping[str, Any]) -> list[EventSource]:
        try:
            return find_sources(answer, backend_url=self._backend.url, name=self._backend.name)
        except ConfigError:
            return []

    async def _chat(self, text: str, **fields: Any) -> tuple[int, Any]:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1,
            **fields,
        }
        return await self._call("/v1/chat/completions", body)

    async def _call(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and answer, decoded if it is JSON; 0 and the reason if there is none."""
        raw = None if body is None else json.dumps(body).encode()
        try:
            status, told = await self._backend.ask(path, body=raw, timeout_s=_TIMEOUT_S)
        except BackendError as error:
            return 0, _reason(error)
        text = told.decode("utf-8", "replace")
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text


def _reason(error: BackendError) -> str:
    """Why there is no answer, in words."""
    cause = error.__cause__
    if isinstance(cause, socket.gaierror):
        return "no such host"
    if isinstance(cause, OSError) and cause.errno:
        return f"no connection: {os.strerror(cause.errno).lower()}"
    return str(error)


async def _greets(address: str) -> bool:
    """Whether a ZeroMQ socket listens: it greets whoever connects."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        async with asyncio.timeout(_EVENT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                return await reader.readexactly(1) == _ZMQ_GREETING
            finally:
                writer.close()
    except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
        return False
