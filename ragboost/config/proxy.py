"""Settings of the proxy: backends, the choice between them, the waiting room, the server."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from ragboost.config.section import Section


def _check_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be a URL such as http://127.0.0.1:8000")
    return value


BaseUrl = Annotated[str, AfterValidator(_check_url)]


class BackendSettings(Section):
    """The upstream OpenAI-compatible server."""

    url: BaseUrl = Field(
        "http://127.0.0.1:8000", description="Base URL of the backend, without /v1."
    )
    connect_timeout_s: float = Field(5.0, gt=0, description="Seconds to wait for a connection.")
    read_timeout_s: float = Field(600.0, gt=0, description="Seconds to wait between two bytes.")
    api_key: SecretStr | None = Field(
        None, description="Key that the backend wants; None: the client's goes on to it."
    )
    max_concurrency: int | None = Field(
        None, ge=1, description="Completions running on a backend at a time; None: unbounded."
    )
    cache_marks: Literal["none", "openai", "anthropic"] = Field(
        "none",
        description="For hosted APIs, where the caller has set none: openai adds a "
        "prompt_cache_key that requests with the same first document share, anthropic a "
        "cache_control breakpoint at the end of the documents that were sent before.",
    )
    reuse_chunks: bool | None = Field(
        None,
        description="Tell the backend where documents stand, so that it can reuse their KV; None: "
        "where it is the embedded engine.",
    )


class ReplicaSettings(Section):
    """One of several backends; what is None is as in `backend`."""

    url: BaseUrl = Field(description="Base URL of this backend, without /v1.")
    name: str | None = Field(
        None, min_length=1, description="Name in headers, metrics and logs; None: host and port."
    )
    api_key: SecretStr | None = Field(None, description="Key that this backend wants.")
    max_concurrency: int | None = Field(
        None, ge=1, description="Completions running on this backend at a time."
    )


class RouterSettings(Section):
    """The choice between several backends."""

    policy: Literal["cache_aware", "least_loaded"] = Field(
        "cache_aware",
        description="cache_aware: fewest tokens to compute before and for the request; "
        "least_loaded: the same without what the prefix caches hold.",
    )
    running_tokens: int = Field(
        512, ge=0, description="What a running request counts beside the prompt tokens to compute."
    )
    max_prefixes: int = Field(
        50_000, ge=1, description="Message prefixes remembered per backend, by last use."
    )
    health_interval_s: float = Field(
        2.0, gt=0, description="Seconds between two health checks of a backend, where several are."
    )
    max_failures: int = Field(
        3,
        ge=1,
        description="Failures in a row after which a backend is left out until it is healthy; a "
        "refused connection is enough by itself.",
    )


class WaitingRoomSettings(Section):
    """Where requests wait to be planned together, and for a backend with room."""

    enabled: bool = Field(
        False, description="Plan requests that come at about the same time together."
    )
    window_ms: float = Field(
        10.0, ge=0, description="Longest wait for others to plan with; none for an idle backend."
    )
    max_batch: int = Field(
        32, ge=1, description="Requests planned together; one is overtaken by at most this many."
    )
    max_waiting: int = Field(
        1024, ge=1, description="Requests that may wait; more get a 429 with Retry-After."
    )
    hold_for_prefill_ms: float = Field(
        0.0,
        ge=0,
        description="Longest wait for the first token of a request that is computing the same "
        "prefix; 0: no such wait.",
    )


class ProxySettings(Section):
    """The OpenAI-compatible server in front."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65_535, description="Port to listen on; 0 picks a free one.")
    max_body_bytes: int = Field(
        32 * 1024 * 1024, ge=1024, description="Larger request bodies get a 413."
    )
    max_header_bytes: int = Field(64 * 1024, ge=1024, description="Larger request heads get a 431.")
    header_timeout_s: float = Field(
        15.0, gt=0, description="Seconds that a client may take to send a request's head."
    )
    body_timeout_s: float = Field(
        60.0, gt=0, description="Seconds that a client may take to send a body, else a 408."
    )
    keep_alive_s: int = Field(
        75, ge=1, description="Seconds that an idle client connection is kept open."
    )
    drain_s: int = Field(
        30, ge=0, description="Seconds that running requests get to finish at shutdown."
    )
    stream_usage: bool = Field(
        True,
        description="Ask the backend for usage in boosted streams whose caller did not, and take "
        "it out again.",
    )
    max_tenants: int = Field(
        1024, ge=1, description="Tenants kept, one per model and cache salt, by last use."
    )
    api_keys: tuple[SecretStr, ...] = Field(
        (), description="Keys of which clients must show one; empty: none is asked for."
    )
    insecure: bool = Field(
        False, description="Listen on other addresses than loopback without API keys."
    )
    shadow: bool = Field(
        False, description="Forward the originals, and count what boosting would have saved."
    )
    access_log: bool = Field(False, description="Log one line of JSON per request.")
    docs: bool = Field(
        False,
        description="Serve the proxy's own API documentation at /openapi.json and /docs, which are "
        "else the backend's paths.",
    )
    tracing: bool = Field(
        False, description="Make OpenTelemetry spans of completions; needs the extra otel."
    )
