"""Settings of the proxy: backends, the choice between them, the server."""

from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from posixpath import normpath
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from ragboost.config.memory import MIB, PROCESS_BYTES, MemoryParts
from ragboost.config.section import Section


def _check_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        host = (parts.hostname or "").encode("idna")  # as a connection does
        is_valid = parts.scheme in ("http", "https") and bool(host) and parts.port != 0
        is_valid = is_valid and value.isprintable() and " " not in value
    except ValueError:  # it quotes the URL's parts, of which one may be a password
        is_valid = False
    if not is_valid:
        raise ValueError("must be a URL such as http://127.0.0.1:8000")
    return value


MAX_BACKENDS = 256
"""Backends of a list that changes, ranks included; further ones are ignored."""

BaseUrl = Annotated[str, AfterValidator(_check_url)]


def public_url(url: BaseUrl) -> str:
    """Return the part of a backend's URL that may be shown: scheme, host, port unless it is that of
    the scheme, path before /v1. URLs of one server are equal, however they are spelled."""
    parts = urlsplit(url)
    host = (parts.hostname or "").removesuffix(".").encode("idna").decode()
    with suppress(ValueError):
        host = ip_address(host).compressed
    host = f"[{host}]" if ":" in host else host
    default = 443 if parts.scheme == "https" else 80
    port = f":{parts.port}" if parts.port not in (None, default) else ""
    path = normpath("/" + parts.path.lstrip("/")).removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{host}{port}{path}"


def _check_key(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    if not text.isprintable() or text != text.strip():
        raise ValueError("must be one line without white space around it")
    return key


def _check_client_keys(keys: "_ClientKeys") -> "_ClientKeys":
    if any(not _check_key(key).get_secret_value() for key in _all_keys(keys)):
        raise ValueError("has an empty key")
    return keys


def _all_keys(keys: "_ClientKeys") -> list[SecretStr]:
    return [key for team in keys for key in (team if isinstance(team, tuple) else (team,))]


def _check_path(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError("must begin with /, such as /sleep")
    return path


def _check_host_name(host: str) -> str:
    if "/" in host or "*" in host or host.count(":") == 1:
        raise ValueError("must be a name such as rag.example, without scheme, port or *")
    return host


ApiKey = Annotated[SecretStr, AfterValidator(_check_key)]
_Team = Annotated[tuple[SecretStr, ...], Field(min_length=1)]
_ClientKeys = tuple[SecretStr | _Team, ...]


class BackendSettings(Section):
    """The upstream OpenAI-compatible server."""

    url: BaseUrl = Field(
        "http://127.0.0.1:8000", description="Base URL of the backend, without /v1."
    )
    dns: bool = Field(
        False,
        description="Each address of the host of `url` is a backend, such as the pods behind a "
        "headless Kubernetes service. Looked up every `router.health_interval_s`; http only.",
    )
    file: Path | None = Field(
        None,
        description="File with the URLs of the backends as a JSON list, read again when it "
        "changes; instead of `url`.",
    )
    connect_timeout_s: float = Field(
        5.0, gt=0, description="Seconds to wait for a connection to the backend."
    )
    read_timeout_s: float = Field(
        600.0,
        gt=0,
        description="Seconds to wait for the next byte of a response. Raise it if non-streaming "
        "responses take longer.",
    )
    api_key: ApiKey | None = Field(
        None, description="API key for the backend; None: forward the client's."
    )
    api_key_file: Path | None = Field(
        None,
        description="File with the API key for the backend, read again when it changes; instead of "
        "`api_key`.",
    )
    max_concurrency: int | None = Field(
        None,
        ge=1,
        description="Completions that run on a backend at a time; further ones wait. None: "
        "unlimited.",
    )
    data_parallel_size: int = Field(
        1,
        ge=1,
        le=256,
        description="Data-parallel ranks of the engine. With more than one, each has a context "
        "index of its own and requests name their rank in the header x-data-parallel-rank, which "
        "vLLM and SGLang follow.",
    )
    reuse_chunks: bool | None = Field(
        None,
        description="Send the positions of documents, so that the backend can reuse their KV. "
        "None: if all backends say at `/chunk_reuse` that they do.",
    )

    @property
    def is_dynamic(self) -> bool:
        """Backends may come and go."""
        return self.dns or self.file is not None


class ReplicaSettings(Section):
    """One of several backends; None means as in `backend`."""

    url: BaseUrl = Field(description="Base URL of this backend, without /v1.")
    name: str | None = Field(
        None, min_length=1, description="Name in headers, metrics and logs; None: host and port."
    )
    api_key: ApiKey | None = Field(None, description="API key for this backend.")
    max_concurrency: int | None = Field(
        None, ge=1, description="Completions that run on this backend at a time."
    )


class RouterSettings(Section):
    """The choice between several backends."""

    policy: Literal["cache_aware", "least_loaded"] = Field(
        "cache_aware",
        description="cache_aware: the backend with the fewest tokens to prefill for the request "
        "and those before it, given its prefix cache; least_loaded: the same without the caches.",
    )
    health_interval_s: float = Field(
        2.0, gt=0, description="Seconds between two health checks of a backend."
    )


class WaitingRoomSettings(Section):
    """The waiting room: requests that wait for a backend, and are planned together meanwhile."""

    mode: Literal["adaptive", "off"] = Field(
        "off",
        description="adaptive: hold requests only while their backend is busy computing prompts, "
        "as long as they would queue there and for 30 s at most, and send first what shares a "
        "cached prefix; off: send "
        "at once, or in order of arrival as max_concurrency allows it.",
    )
    max_waiting: int = Field(
        1024,
        ge=1,
        description="Requests that may wait. adaptive: further ones are sent at once; if the "
        "backend is at its max_concurrency they get a 429 with Retry-After, as with off.",
    )


class BoostSettings(Section):
    """The requests that are boosted."""

    share: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of the conversations with documents that are boosted. The others are "
        "forwarded unboosted, and metrics and dashboard compare both.",
    )


class ReuseSettings(Section):
    """Chunk reuse by the backends: how much it may change answers."""

    check: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the greedy answers with reused chunks that the backend scores once "
        "more, exactly, while it has nothing else to do; metrics and dashboard show how many are "
        "not what the exact model says.",
    )
    max_changed: float | None = Field(
        None,
        gt=0,
        le=0.5,
        description="Share of the answers that reuse may change: moves the recompute ratio of each "
        "endpoint, model and team, up to exactness. None: only measure.",
    )


class LogSettings(Section):
    """The log of `ragboost serve` and `ragboost engine` on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level that is logged. debug: also texts of documents."
    )
    format: Literal["text", "json"] = Field(
        "text", description="text: a line per event; json: an object per event, on one line."
    )


class ProxySettings(Section):
    """The OpenAI-compatible server."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65_535, description="Port to listen on; 0 picks a free one.")
    max_body_bytes: int = Field(
        32 * 1024 * 1024, ge=1024, description="Largest request body; larger ones get a 413."
    )
    memory_bytes: int = Field(
        2048 * MIB,
        ge=PROCESS_BYTES + 64 * 1024,
        description="Memory of the process. The bounds of its parts follow from it: bodies of "
        "running requests (further ones get a 503 with Retry-After), conversations, chat sessions, "
        "context indexes, caches.",
    )
    header_timeout_s: float = Field(
        15.0, gt=0, description="Seconds in which a client must send the request headers."
    )
    body_timeout_s: float = Field(
        60.0, gt=0, description="Seconds in which a client must send the request body, else a 408."
    )
    keep_alive_s: int = Field(
        75, ge=1, description="Seconds for which idle client connections are kept open."
    )
    drain_s: int = Field(
        30, ge=0, description="Seconds for running requests to finish at shutdown."
    )
    stream_usage: bool = Field(
        True,
        description="Request usage in boosted streams, and remove it from the response if the "
        "client did not ask for it.",
    )
    receipts: bool = Field(
        False,
        description="Add a receipt to responses that report usage: the header x-ragboost-receipt, "
        "or usage.ragboost in the usage event of a stream whose client asked for it.",
    )
    api_keys: Annotated[_ClientKeys, AfterValidator(_check_client_keys)] = Field(
        (),
        description="API keys of which clients must send one; empty: no key is required. Each has "
        'context indexes of its own; keys in an inner list, as in ["a", ["b", "c"]], share theirs.',
    )
    api_keys_file: Path | None = Field(
        None,
        description='File with the keys as JSON, {"TEAM": ["KEY", ...], ...}, read again when it '
        "changes; instead of `api_keys`. A key counts until it is removed.",
    )
    metrics_key: SecretStr | None = Field(
        None,
        description="Key that `/metrics` needs, as `authorization: Bearer KEY`; without one it is "
        "open. Of a quiet proxy it shows the tokens of single requests.",
    )
    priorities: dict[str, Annotated[int, Field(ge=-(2**31), lt=2**31)]] = Field(
        {},
        description="By team of `api_keys_file`: the least `priority` of its completions, of "
        "which vLLM begins with the lowest, as those do that wait in the proxy; a client's own "
        "counts if it is greater.",
    )
    forwarded_paths: tuple[Annotated[str, AfterValidator(_check_path)], ...] = Field(
        (),
        description="Paths of the backend that clients may use, beside those for inference; each "
        "with all paths below it. /: all paths.",
    )
    allowed_hosts: tuple[Annotated[str, AfterValidator(_check_host_name)], ...] = Field(
        (),
        description="Names under which a proxy on a loopback address without API keys may be "
        "addressed, beside those of this machine; for web pages, also their hosts.",
    )
    insecure: bool = Field(
        False, description="Allow listening on non-loopback addresses without API keys."
    )
    shadow: bool = Field(
        False, description="Forward requests unchanged and measure what boosting would have saved."
    )
    record: Path | None = Field(
        None,
        description="File for a line of JSON per completion with hashed ids and token lengths, no "
        "text, for `simulate`, `doctor --log` and `bench trace`. None: off.",
    )
    access_log: bool = Field(False, description="Log one line of JSON per request.")
    tracing: bool = Field(
        False, description="Record OpenTelemetry spans of completions; needs the extra otel."
    )

    @property
    def memory(self) -> MemoryParts:
        return MemoryParts.of(self.memory_bytes)

    @property
    def client_keys(self) -> list[SecretStr]:
        """The keys of all teams."""
        return _all_keys(self.api_keys)

    @property
    def has_keys(self) -> bool:
        """Clients must send an API key."""
        return bool(self.api_keys) or self.api_keys_file is not None
