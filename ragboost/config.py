"""Settings of every package: flags beat environment beat `ragboost.toml` beat defaults.

A section per package, named after it. Knows no command line and no package.
"""

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from ragboost.errors import ConfigError

ENV_PREFIX = "RAGBOOST_"
TOML_NAME = "ragboost.toml"


_PLACEHOLDERS = {
    "order_template": "{order}",
    "label_template": "{label}",
    "location_template": "{document}",
}


class _Changed:
    """Shows only the fields that differ from their defaults, as in the constructor's call."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        fields: Mapping[str, FieldInfo] = type(self).model_fields  # type: ignore[attr-defined]
        for name, info in fields.items():
            if (value := getattr(self, name)) != info.default:
                yield name, value


class Section(_Changed, BaseModel):
    """Base of all sections: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class IndexSettings(Section):
    """The context index (paper section 4)."""

    capacity_tokens: int | None = Field(
        None, ge=1, description="Tokens that the engine's prefix cache holds; None: unbounded."
    )
    max_nodes: int = Field(
        200_000, ge=1, description="Nodes kept; the least recently used go first."
    )
    max_visits: int = Field(32, ge=1, description="Nodes that one search may go on from.")


class OrderingSettings(Section):
    """The order of documents inside a request (paper section 5.1)."""

    enabled: bool = Field(True, description="Reorder documents to extend a cached prefix.")
    tail: Literal["relevance", "popularity"] = Field(
        "relevance", description="Order of the documents behind the cached prefix."
    )
    min_saved_tokens: int = Field(
        0, ge=0, description="Reorder only when at least this many tokens are saved."
    )
    keep_last: int = Field(
        0,
        ge=0,
        description="Keep this many of the most relevant documents next to the question.",
    )
    linkage: Literal["savings", "distance"] = Field(
        "savings",
        description="Batch clustering: most saved tokens, or the paper's distance (Eq. 1).",
    )
    alpha: float = Field(
        0.001, ge=0.0, le=0.01, description="Weight of positions in the paper's distance (Eq. 1)."
    )


class DedupSettings(Section):
    """De-duplication across the turns of a session and inside a request (paper section 6)."""

    enabled: bool = Field(
        True,
        description="Send a document once per request, and once per session where location hints "
        "are on.",
    )
    passages: bool = Field(
        False,
        description="Replace what a chat's tool result repeats of earlier ones, whole or in "
        "passages, by a reference.",
    )
    passage_min_bytes: int = Field(
        512, ge=64, description="Shorter passages are not cut, and shorter repetitions are kept."
    )
    passage_avg_bytes: int = Field(1024, ge=64, description="Mean length of a passage.")
    passage_max_bytes: int = Field(4096, ge=64, description="Longer passages are cut.")

    @model_validator(mode="after")
    def _are_passage_sizes_ordered(self) -> Self:
        if not self.passage_min_bytes <= self.passage_avg_bytes <= self.passage_max_bytes:
            raise ValueError(
                "passage_min_bytes, passage_avg_bytes and passage_max_bytes must not decrease"
            )
        return self


class HintSettings(Section):
    """Order hints (paper section 5.3) and location hints (section 6)."""

    order: bool = Field(
        True, description="Tell the model the relevance order of reordered documents."
    )
    location: bool = Field(
        True,
        description="Tell the model where a document of an earlier turn stands; off: it is sent "
        "again.",
    )
    position: Literal["before_question", "after_question"] = Field(
        "before_question", description="Where the hints stand."
    )
    order_template: str = Field(
        "Please read the context in the following priority order: {order} and answer the question.",
        description="Order hint; {order} becomes the labels, most relevant first.",
    )
    label_template: str = Field(
        "[Doc_{label}]",
        description="A document's label in prompt and hints; {label} becomes its id.",
    )
    location_template: str = Field(
        "Please refer to {document} in the previous conversation.",
        description="Location hint; {document} becomes the document's label.",
    )

    @field_validator("order_template", "label_template", "location_template")
    @classmethod
    def _has_placeholder(cls, template: str, info: ValidationInfo) -> str:
        placeholder = _PLACEHOLDERS[str(info.field_name)]
        if placeholder not in template:
            raise ValueError(f"must contain {placeholder}")
        return template


class Delimiters(Section):
    """Marks around a caller's documents inside the text of messages."""

    name: str = Field(min_length=1, description="Name of the shape, for messages.")
    start: str = Field(min_length=2, description="Text with which a document begins.")
    end: str = Field(min_length=2, description="Text with which a document ends.")
    separator: str | None = Field(
        None,
        min_length=1,
        description="Where given, start and end stand around all documents, and this between two.",
    )


class FormatSettings(Section):
    """How documents are found in request bodies."""

    in_text: bool = Field(
        True, description="Look for documents in the text of messages and in tool results."
    )
    numbers: Literal["label", "keep"] = Field(
        "label",
        description="Documents that are numbered by position, such as Document 1: label puts names "
        "of their own in place of the numbers and tells the model which is which, keep leaves them "
        "where they are.",
    )
    delimiters: tuple[Delimiters, ...] = Field(
        (), description="More marks to find documents by: name, start, end, separator."
    )


class SessionSettings(Section):
    """What is remembered of conversations."""

    max_sessions: int = Field(
        10_000, ge=1, description="Sessions kept; the least recently used go first."
    )
    ttl_s: float = Field(
        86_400.0, gt=0, description="Seconds after which an unused session is forgotten."
    )
    max_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1024,
        description="Bytes of sent messages that the proxy keeps to send them again unchanged; as "
        "many for conversations without a session id, and for chat sessions in memory.",
    )
    max_documents: int = Field(
        10_000,
        ge=1,
        description="Documents remembered per session; beyond it the oldest turns are forgotten, "
        "and their documents sent again.",
    )
    stateless: bool = Field(
        True,
        description="Recognise conversations without a session id by an exact chain over their "
        "messages; kept in the proxy's memory.",
    )
    store: Literal["memory", "sqlite"] = Field(
        "memory", description="Where the sessions of the chat-session API are kept."
    )
    path: Path = Field(
        Path("ragboost-sessions.db"), description="The SQLite file, for session.store = sqlite."
    )


class BackendSettings(Section):
    """The upstream OpenAI-compatible server."""

    url: str = Field("http://127.0.0.1:8000", description="Base URL of the backend, without /v1.")
    connect_timeout_s: float = Field(5.0, gt=0, description="Seconds to wait for a connection.")
    read_timeout_s: float = Field(600.0, gt=0, description="Seconds to wait between two bytes.")
    api_key: SecretStr | None = Field(
        None, description="Key that the backend wants; None: the client's goes on to it."
    )
    max_concurrency: int | None = Field(
        None, ge=1, description="Completions running on a backend at a time; None: unbounded."
    )


class ReplicaSettings(Section):
    """One of several backends; what is None is as in `backend`."""

    url: str = Field(min_length=1, description="Base URL of this backend, without /v1.")
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
    tracing: bool = Field(
        False, description="Make OpenTelemetry spans of completions; needs the extra otel."
    )


class EngineSettings(Section):
    """The embedded engine."""

    model: Path | None = Field(
        None, description="Directory of a Hugging Face causal LM; None: a small built-in model."
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65_535, description="Port to listen on; 0 picks a free one.")
    capacity_tokens: int = Field(
        65_536, ge=16, description="Tokens of KV that the prefix cache holds."
    )
    block_size: int = Field(16, ge=1, description="Tokens per block of the prefix cache.")
    served_model_name: str | None = Field(
        None, description="Name of the model in the API; None: its directory's."
    )
    builtin_size: Literal["small", "tiny"] = Field(
        "small", description="Which built-in model: small, or tiny for tests."
    )
    seed: int = Field(0, ge=0, description="Seed of the built-in model's weights.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where to compute; auto: a GPU for a given model where there is one."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Weights and KV; auto: float32 on a CPU, as stored on a GPU."
    )
    num_threads: int | None = Field(
        None, ge=1, description="Threads of the process that compute; None: torch's default."
    )
    max_model_len: int | None = Field(
        None, ge=1, description="Longest prompt and answer together, in tokens; None: the model's."
    )
    default_max_tokens: int = Field(
        256, ge=1, description="Tokens generated where a chat request does not say."
    )
    max_running: int = Field(16, ge=1, description="Requests computed in one batch.")
    max_waiting: int = Field(
        1024, ge=0, description="Requests that may wait; more get a 503 at once."
    )
    max_step_tokens: int = Field(
        512, ge=1, description="Tokens computed in one step; long prompts are cut into chunks."
    )
    max_body_bytes: int = Field(
        32 * 1024 * 1024, ge=1024, description="Larger request bodies get a 413."
    )
    kv_events_endpoint: str | None = Field(
        None,
        description="ZeroMQ address to publish cache events on, such as tcp://127.0.0.1:5557; "
        "always bound; None: no events.",
    )
    kv_events_replay_endpoint: str | None = Field(
        None, description="ZeroMQ address that replays past events; None: no replay."
    )
    kv_events_topic: str = Field("", description="Topic of the event messages.")


class EngineHookSettings(Section):
    """What the backend's engine tells of its prefix cache."""

    endpoint: str | None = Field(
        None, description="ZeroMQ address of the backend's KV events; None: ask the backend."
    )
    discover: bool = Field(
        True,
        description="Ask each backend where it publishes KV events and how much its cache holds.",
    )
    replay_endpoint: str | None = Field(
        None, description="ZeroMQ address for replays, where `endpoint` is set."
    )
    topic: str = Field("", description="Only KV events whose topic begins with this.")
    bind: bool = Field(
        False, description="Listen at `endpoint`, for an engine that connects to tcp://HOST:PORT."
    )
    report_url: str | None = Field(
        None, description="Inside an engine: the proxy that RAGBoost's plug-in reports to."
    )
    report_key: SecretStr | None = Field(
        None, description="Inside an engine: the API key that the proxy wants for reports."
    )
    report_stream: str | None = Field(
        None,
        description="Inside an engine: the name it reports under, with several backends the "
        "name of this one; None: the host's name.",
    )


class Settings(_Changed, BaseSettings):
    """All settings. `Settings()` in code holds defaults and what is passed; `load_settings` also
    reads the environment and `ragboost.toml`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    index: IndexSettings = IndexSettings()
    ordering: OrderingSettings = OrderingSettings()
    dedup: DedupSettings = DedupSettings()
    hints: HintSettings = HintSettings()
    formats: FormatSettings = FormatSettings()
    session: SessionSettings = SessionSettings()
    backend: BackendSettings = BackendSettings()
    backends: tuple[ReplicaSettings, ...] = Field(
        (),
        description="Several backends: url, name, api_key, max_concurrency; `backend.url` is "
        "not used then.",
    )
    router: RouterSettings = RouterSettings()
    waiting_room: WaitingRoomSettings = WaitingRoomSettings()
    proxy: ProxySettings = ProxySettings()
    engine: EngineSettings = EngineSettings()
    engine_hooks: EngineHookSettings = EngineHookSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what the caller passes and nothing else."""
        return (init_settings,)


def load_settings(flags: Mapping[str, Any] | None = None, *, toml: Path | None = None) -> Settings:
    """Merge flags, environment, TOML file and defaults, in this order of precedence.

    Args:
        flags: values by dotted path, such as `{"proxy.port": 8080}`; None values are left out.
        toml: the file; None: `ragboost.toml` of the working directory where it exists. Environment
            names look like `RAGBOOST_PROXY__PORT`.

    Raises:
        ConfigError: a file that is not there, bad TOML, an unknown key (with the nearest name), a
            value out of range; the message names the source.
    """
    toml = toml or (Path(TOML_NAME) if Path(TOML_NAME).is_file() else None)
    given = {path: value for path, value in (flags or {}).items() if value is not None}
    origin = {**_toml_paths(toml), **_environ_paths(), **dict.fromkeys(given, "command line")}
    for path, source in origin.items():
        _check_known(path, source)

    class Loaded(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            file = (TomlConfigSettingsSource(settings_cls, toml),) if toml else ()
            return (init_settings, env_settings, *file)

    try:
        loaded = Loaded(**_nested(given))
    except ValidationError as error:
        raise ConfigError(_explain(error, origin)) from None
    except SettingsError as error:
        raise ConfigError(f"environment: {error}") from None
    return Settings(**{name: getattr(loaded, name) for name in Settings.model_fields})


def field_paths() -> dict[str, str]:
    """Dotted path of every setting, with its description."""
    paths = {}
    for section, holder in Settings.model_fields.items():
        if not isinstance(holder.default, Section):
            paths[section] = holder.description or ""
            continue
        for name, info in type(holder.default).model_fields.items():
            paths[f"{section}.{name}"] = info.description or ""
    return paths


def _toml_paths(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    return {
        f"{section}.{name}" if name else section: str(path)
        for section, values in data.items()
        for name in ((values if isinstance(values, dict) else None) or [""])
    }


def _environ_paths() -> dict[str, str]:
    return {
        name.removeprefix(ENV_PREFIX).lower().replace("__", "."): name
        for name in os.environ
        if name.startswith(ENV_PREFIX)
    }


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        section, _, name = path.partition(".")
        if name:
            tree.setdefault(section, {})[name] = value
        else:
            tree[section] = value
    return tree


def _check_known(path: str, source: str) -> None:
    known = field_paths()
    if path in known or path in Settings.model_fields:
        return
    near = difflib.get_close_matches(path, known, n=1, cutoff=0.5)
    advice = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(known))}"
    raise ConfigError(f"unknown setting {path!r} (from {source}){advice}")


def _explain(error: ValidationError, origin: Mapping[str, str]) -> str:
    lines = []
    for problem in error.errors():
        parts = [str(part) for part in problem["loc"]]
        path = ".".join(parts if parts[0] == "backends" else parts[:2])
        found = origin.get(path) or origin.get(parts[0])
        source = f" (from {found})" if found else ""
        is_secret = any(part.startswith("api_key") for part in parts)
        given = "" if is_secret else f", got {problem['input']!r}"
        lines.append(f"{path}: {problem['msg']}{given}{source}")
    return "; ".join(lines)
