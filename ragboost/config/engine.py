"""Settings of the embedded engine, and of what engines tell of their prefix caches."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from ragboost.config.section import Section


class EngineSettings(Section):
    """The embedded engine."""

    model: Path | None = Field(
        None, description="Directory of a Hugging Face causal LM; None: a small built-in model."
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65_535, description="Port to listen on; 0 picks a free one.")
    docs: bool = Field(True, description="Serve `/openapi.json` and `/docs`.")
    capacity_tokens: int = Field(
        65_536, ge=16, description="Tokens of KV that the prefix cache holds."
    )
    block_size: int = Field(16, ge=1, description="Tokens per block of the prefix cache.")
    eviction: Literal["lru", "lfu", "lacr", "next-use", "next-use-lfu"] = Field(
        "next-use",
        description="Which blocks of the prefix cache go first: by last use, by number of uses, or "
        "(lacr, next-use) by what waiting requests will use, too. Without waiting requests "
        "next-use is lru.",
    )
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
    reuse: Literal["off", "exact", "approx"] = Field(
        "exact",
        description="Reuse of chunks that are no prefix. off: not possible; exact: only for "
        "requests that ask for it; approx: for all that do not ask for exact.",
    )
    reuse_policy: str = Field(
        "gradual", description="Which reused tokens to compute again, where a request does not say."
    )
    reuse_ratio: float = Field(
        0.15, ge=0, le=1, description="Share of reused tokens to compute again, likewise."
    )
    reuse_capacity_bytes: int = Field(
        1 << 30, ge=1, description="Memory for the KV of stored chunks, on the model's device."
    )
    reuse_directory: Path | None = Field(
        None,
        description="Directory for the KV of stored chunks that memory does not hold, and for the "
        "next start; several engines may share one. None: none is kept.",
    )
    reuse_disk_bytes: int = Field(
        64 << 30, ge=1, description="Size of `reuse_directory`, all engines together."
    )
    reuse_host_bytes: int = Field(
        8 << 30,
        ge=1,
        description="With `reuse_directory` and a model on a GPU: host memory for the KV of stored "
        "chunks.",
    )
    graph_attention: Literal["auto", "dependency", "subgraphs", "self"] = Field(
        "auto",
        description="How relation paths of a request are attended to. auto: with dependency "
        "attention if the model was tuned for it, else written out; dependency: tuned or not, "
        "which costs accuracy; subgraphs: written out, subgraphs reused without sight of each "
        "other; self: written out.",
    )
    graph_recompute_ratio: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the paths' tokens to compute again with everything before them in "
        "sight, for a model that was not tuned.",
    )
    graph_capacity_tokens: int = Field(
        65_536, ge=0, description="Tokens of relation paths whose KV is kept."
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
