"""Check what RAGBoost needs of a backend, and say what to change.

Sends a few small requests. Changes nothing, and names no flag of an engine it does not recognise.
"""

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ragboost.cache_sync.discovery import EventSource, configured_source, discover
from ragboost.cache_sync.subscriber import probe_events
from ragboost.cache_sync.tracked_request import SESSION_FIELD, SESSION_HEADER
from ragboost.config import Settings
from ragboost.errors import BackendError, BackendTimeoutError, ConfigError
from ragboost.proxy.upstream.backend import Backend
from ragboost.proxy.upstream.backends import Backends
from ragboost.proxy.upstream.engines import PROXY_REFUSAL, explain_refusal, find_kind, owner_of
from ragboost.requests.headers import RawHeaders, printable

_TIMEOUT_S = 60.0
_EVENT_TIMEOUT_S = 3.0
_LONG_TEXT = "The quick brown fox jumps over the lazy dog. " * 80  # longer than an engine's block
_ADDRESSES = '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"'
_EVENTS_JSON = f'{{"enable_kv_cache_events": true, "publisher": "zmq", {_ADDRESSES}}}'
_SGLANG_EVENTS_JSON = f'{{"publisher": "zmq", {_ADDRESSES}}}'
_TOKENS = 700  # of _LONG_TEXT, at least
_MIN_HOSTED_TOKENS = 1100  # hosted APIs cache no shorter prompts
_MAX_TOKENS = 8 * _TOKENS  # of a request
_MAX_SMALL_BLOCK = 128
_MAX_MESSAGE = 200
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_MATCH_UNITS = re.compile(r'\b(prefix_match_unit|block_size)="(\d+)"')
_PREFIX_CACHING = re.compile(
    r'^vllm:cache_config_info\{.*enable_prefix_caching="(\w+)"', re.MULTILINE
)

_CACHE_ABSENT = re.compile(
    r'^ragboost_backend_prefix_cache_absent\{[^}]*backend="([^"]*)"[^}]*\} 1', re.MULTILINE
)
_NUM_UNMARKED = re.compile(
    r'^ragboost_bypass_total\{reason="unmarked_documents"\} ([1-9][\d.e+]*)$', re.MULTILINE
)

# What to change, by check and by engine; "" is any other engine.
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
    "tokenizer": {"": "nothing to change: lengths are estimated, and corrected by usage"},
    "block size": {
        "vllm": "start vLLM with --prefix-match-unit 32, where it has this option, or have longer "
        "beginnings in common: a system prompt, or documents first",
        "sglang": "start SGLang with a smaller --page-size",
        "": "have longer beginnings in common: a system prompt, or documents first",
    },
    "KV events": {
        "vllm": f"start vLLM with --kv-events-config '{_EVENTS_JSON}'",
        "sglang": f"start SGLang with --kv-events-config '{_SGLANG_EVENTS_JSON}'",
        "ragboost": "start the engine with --kv-events-endpoint tcp://127.0.0.1:5557",
        "": "nothing known for this server; its cache is modelled from the requests sent",
    },
}

Status = Literal["ok", "advice", "failed"]


@dataclass(frozen=True)
class Finding:
    backend: str  # name of the backend
    check: str  # name of the check
    status: Status  # `ok`; `advice`: works, with room for improvement; `failed`: does not work
    message: str
    fix: str = ""  # what to change; empty if nothing

    def as_json(self) -> dict[str, str]:
        return asdict(self)


async def examine(settings: Settings, *, kv_events: str | None = None) -> list[Finding]:
    """Check every backend of the settings, the first with its cache events at `kv_events`."""
    findings = []
    backends = Backends.of(settings)
    for lookup in backends.sources:
        await lookup.refresh()
    for index, backend in enumerate(backends.all):
        name, source = f"{backend.name}/0", None
        if index == 0:
            source = configured_source(settings.engine_hooks, name=name)
        if kv_events is not None and index == 0:
            source = EventSource(name, kv_events)
        findings += await _Examination(backend, source).run()
    return findings


def exit_code(findings: list[Finding]) -> int:
    return int(any(finding.status == "failed" for finding in findings))


class _Examination:
    """The checks of one backend, in an order in which each may rely on those before it."""

    def __init__(self, backend: Backend, source: EventSource | None) -> None:
        self._backend = backend
        self._source = source
        self._engine = ""
        self._model = ""
        self._is_proxy = False  # another RAGBoost
        self._is_hosted = False  # it has no routes of an engine
        self._block_size = 0  # tokens that its prefix cache stores together; 0 if unknown
        self._findings: list[Finding] = []

    async def run(self) -> list[Finding]:
        """Return all findings; only the first failure if the backend cannot be used at all."""
        if not await self._reachable():
            return self._findings
        reuse = await self._kind()
        if await self._completion() and not (self._is_proxy or self._is_hosted):
            await self._documents()
            await self._tokenizer()
            await self._events()
            self._chunk_reuse(reuse)
        return self._findings

    def _add(self, check: str, status: Status, message: str, *, fix: str = "") -> None:
        if status != "ok" and not fix:
            fixes = _FIXES[check]
            fix = fixes.get(self._engine, fixes[""])
        self._findings.append(Finding(self._backend.name, check, status, message, fix))

    async def _reachable(self) -> bool:
        status, answer = await self._call("/v1/models")
        models = answer.get("data") if isinstance(answer, dict) else None
        if status == 200 and isinstance(models, list) and models:
            self._model = str(models[0].get("id", ""))
            self._engine = owner_of(answer)
            self._add("reachable", "ok", f"{self._backend.url} serves {self._model}")
            return True
        if status in (401, 403):
            fix = "set backend.api_key (RAGBOOST_BACKEND__API_KEY)"
        elif status == 0:
            fix = "start the backend, or give its address: --backend URL"
        else:
            fix = "give the base URL of an OpenAI-compatible server: --backend URL"
        found = answer if status == 0 else f"GET /v1/models {_told(status, answer)}"
        self._add("reachable", "failed", f"{self._backend.url}: {found}", fix=fix)
        return False

    async def _kind(self) -> Any:
        """Find out what the backend is; return its answer about chunk reuse."""
        _, reuse = await self._call("/chunk_reuse")
        error = reuse.get("error") if isinstance(reuse, dict) else None
        if isinstance(error, dict) and error.get("message") == PROXY_REFUSAL:
            self._is_proxy = True
            found = "this is a RAGBoost proxy: the other checks see its backend through it"
            fix = "give the engine's own address for the rest: --backend URL"
            self._add("engine", "advice", found, fix=fix)
            await self._proxy_metrics()
            return reuse
        kind = await find_kind(self._ask)  # None: it is slow, and its models say enough
        if kind is not None and self._engine != "ragboost":
            self._engine = kind
        if self._engine == "hosted":
            self._is_hosted = True
            found = "no routes of an engine: a hosted API, whose cache is modelled from usage"
            self._add("engine", "ok", found)
        (_, metrics), (_, info) = await self._call("/metrics"), await self._call("/server_info")
        if isinstance(metrics, str) and (config := _CACHE_CONFIG.search(metrics)):
            units: dict[str, str] = dict(_MATCH_UNITS.findall(config[1]))
            self._block_size = int(units.get("prefix_match_unit") or units.get("block_size") or 0)
        elif isinstance(info, dict) and isinstance(info.get("page_size"), int):
            self._block_size = info["page_size"]
        return reuse

    async def _proxy_metrics(self) -> None:
        """Say what a proxy has learnt of its backends and of the documents that it was sent."""
        _, metrics = await self._call("/metrics")
        absent = _CACHE_ABSENT.findall(metrics) if isinstance(metrics, str) else ()
        for name in dict.fromkeys(absent):  # every worker of a proxy says so
            found = f"{name} reported no cached token in 60 responses that should have hits"
            fix = "run `ragboost doctor --backend` with its address"
            self._add("hits", "advice", found, fix=fix)
        num = _NUM_UNMARKED.search(metrics) if isinstance(metrics, str) else None
        if num is not None:
            found = f"{float(num[1]):.0f} requests seem to hold documents without boundaries"
            fix = "wrap the retriever (two lines), or put each document into a tag"
            self._add("documents", "advice", found, fix=fix)

    async def _completion(self) -> bool:
        """Send two requests with the same long beginning; the second shows the prefix cache."""
        tokens = _MIN_HOSTED_TOKENS if self._is_hosted else 2 * self._block_size
        text = f"{uuid.uuid4()} {_LONG_TEXT * (1 + min(tokens, _MAX_TOKENS) // _TOKENS)}"
        usage: dict[str, Any] = {}
        for question in ("One?", "Two?"):
            status, answer = await self._chat(text + question)
            if status != 200 or not isinstance(answer, dict):
                fix = "see the backend's log"
                found = f"a chat request to {self._model}: {_told(status, answer)}"
                self._add("completion", "failed", found, fix=fix)
                return False
            usage = answer.get("usage") or {}
        self._add("completion", "ok", "chat requests work")
        details = usage.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens", usage.get("cached_tokens"))
        if cached is None:
            is_changeable = not (self._is_proxy or self._is_hosted)
            found = "cached tokens are not reported: hits stay unknown"
            self._add("usage", "advice" if is_changeable else "ok", found)
        else:
            self._add("usage", "ok", "cached tokens are reported")
        await self._prefix_cache(cached, total=usage.get("prompt_tokens", 0))
        return True

    async def _prefix_cache(self, cached: int | None, *, total: int) -> None:
        check, block = "prefix cache", self._block_size
        if block > _MAX_SMALL_BLOCK:
            found = f"a block has {block} tokens: a shared prefix that is shorter is never cached"
            self._add("block size", "advice", found)
        if cached:
            self._add(check, "ok", f"{cached} of {total} repeated tokens were cached")
        elif cached is not None and block > total:
            fix = "send two prompts with a longer beginning in common, and compare their usage"
            self._add(
                check, "advice", f"cannot tell: {total} tokens are less than a block", fix=fix
            )
        elif self._is_hosted:
            if cached is not None:
                found = f"none of {total} repeated tokens were cached this time"
                fix = "check again; some APIs cache only what the client marks"
                self._add(check, "advice", found, fix=fix)
        elif cached is None and self._is_proxy:
            return
        elif cached is not None:
            self._add(check, "failed", f"none of {total} repeated tokens were cached")
        elif (is_on := await self._has_prefix_cache()) is None:
            fix = "let the backend report cached tokens (see usage) and check again"
            self._add(check, "advice", "cannot tell if it is enabled", fix=fix)
        elif is_on:
            self._add(check, "ok", "enabled, but the cached tokens of a request are not reported")
        else:
            self._add(check, "failed", "disabled")

    async def _has_prefix_cache(self) -> bool | None:
        """Read the engine's own settings; None if they do not say."""
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
        documents = {"documents": [{"title": "Zebra", "text": "A zebra has stripes. " * 20}] * 2}
        alone = await self._prompt_tokens()
        if await self._prompt_tokens(**documents) > alone + 20:
            self._add("documents", "ok", "the chat template renders the `documents` field")
        elif await self._prompt_tokens(chat_template_kwargs=documents) > alone + 20:
            found = "the chat template renders the `documents` of `chat_template_kwargs`"
            self._add("documents", "ok", found)
        else:
            self._add("documents", "advice", "the chat template ignores the `documents` field")

    async def _prompt_tokens(self, **fields: Any) -> int:
        status, answer = await self._chat("How many stripes?", **fields)
        usage = answer.get("usage") if status == 200 and isinstance(answer, dict) else None
        return int((usage or {}).get("prompt_tokens") or 0)

    async def _tokenizer(self) -> None:
        body = {"model": self._model, "prompt": "How many tokens?"}
        status, answer = await self._call("/tokenize", body)
        if status == 200 and isinstance(answer, dict) and "tokens" in answer:
            self._add("tokenizer", "ok", "POST /tokenize works")
        else:
            self._add("tokenizer", "advice", f"POST /tokenize {_told(status, answer)}")

    async def _events(self) -> None:
        sources: Sequence[EventSource] = [] if self._source is None else [self._source]
        if not sources:
            sources = (await discover(self._backend)).sources
        if not sources:
            self._add("KV events", "advice", "the backend announces no stream of cache events")
            return
        where, check = sources[0].endpoint, "KV events"
        try:
            arrival = await probe_events(sources, self._store_blocks, timeout_s=_EVENT_TIMEOUT_S)
        except ConfigError as error:  # a running proxy has bound the address, for example
            self._add(check, "failed", str(error), fix="give an address that can be used")
            return
        if not arrival.is_connected or not arrival.has_stored:
            found = "no event of a request arrived" if arrival.is_connected else "no connection"
            fix = sources[0].silence(is_connected=arrival.is_connected)
            self._add(check, "failed", f"{where}: {found}", fix=fix)
        elif not arrival.has_id:
            fix = "use a release of the engine whose BlockStored events have a session_id"
            self._add(check, "advice", f"events arrive from {where}, without request ids", fix=fix)
        elif self._source is None and not all(source.replay_endpoint for source in sources):
            found = "no replay_endpoint: after a lost message the mirror starts empty"
            self._add(check, "advice", found)
        else:
            self._add(check, "ok", f"the event of a request arrived from {where}")

    def _chunk_reuse(self, answer: Any) -> None:
        facts = answer if isinstance(answer, dict) else {}
        check, possible = "chunk reuse", facts.get("is_possible")
        if possible is True:
            found = f"on: a request that says nothing is computed `{facts.get('default')}`"
            self._add(check, "ok", found)
        elif possible is False:
            found = f"refused: {explain_refusal(str(facts.get('refusal')))}"
            fix = "change that if you want chunk reuse; all else works without it"
            self._add(check, "advice", found, fix=fix)
        elif self._engine:
            self._add(check, "ok", "off; `python -m ragboost.chunk_cache` says how to switch it on")

    async def _store_blocks(self, request_id: str) -> None:
        """Send a prompt that the engine has not cached, under an id for its events."""
        headers = [(SESSION_HEADER, request_id.encode())]
        text = f"{uuid.uuid4()} {_LONG_TEXT}"
        await self._chat(text, headers=headers, **{SESSION_FIELD: request_id})

    async def _chat(self, text: str, *, headers: RawHeaders = (), **fields: Any) -> tuple[int, Any]:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1,
            **fields,
        }
        return await self._call("/v1/chat/completions", body, headers=headers)

    async def _ask(
        self, path: str, body: bytes | None = None, *, headers: RawHeaders = ()
    ) -> tuple[int, bytes]:
        return await self._backend.ask(path, body=body, headers=headers, timeout_s=_TIMEOUT_S)

    async def _call(
        self, path: str, body: Any = None, *, headers: RawHeaders = ()
    ) -> tuple[int, Any]:
        """Return status and body, decoded if it is JSON; 0 and the reason without a response."""
        raw = None if body is None else json.dumps(body).encode()
        try:
            status, data = await self._ask(path, raw, headers=headers)
        except BackendTimeoutError:
            return 0, f"no answer within {_TIMEOUT_S:g} s"
        except BackendError as error:
            return 0, str(error)
        text = data.decode("utf-8", "replace")
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text


def _told(status: int, answer: Any) -> str:
    """Return what a backend answered, or why it did not."""
    return f"returned {status}{_error_message(answer)}" if status else str(answer)


def _error_message(answer: Any) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return f": {printable(message[:_MAX_MESSAGE])}" if isinstance(message, str) else ""
