"""Settings of the embedded engine, and of the cache events of other engines."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr

from ragboost.config.section import Section

TINY_MODEL = "ragboost-tiny"


class EngineSettings(Section):
    """The embedded engine."""

    model: Path | None = Field(
        None,
        description="Directory of a Hugging Face causal LM, its name on the hub, such as "
        "Qwen/Qwen3-0.6B, or that of a fetched one, such as smollm2-135m; None: a small built-in "
        "model; ragboost-tiny: a smaller one, for tests.",
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65_535, description="Port to listen on; 0 picks a free one.")
    capacity_tokens: int = Field(
        65_536, ge=16, description="Size of the prefix cache, in tokens of KV."
    )
    block_size: int = Field(16, ge=1, description="Tokens per block of the prefix cache.")
    served_model_name: str | None = Field(
        None,
        description="Name of the model in the API; None: that on the hub, or of the directory.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="Device to compute on; auto: a GPU if there is one and `model` is set, else "
        "the CPU.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Type of weights and KV; auto: float32 on a CPU, as stored on a GPU."
    )
    max_model_len: int | None = Field(
        None, ge=1, description="Longest prompt plus output, in tokens; None: the model's limit."
    )
    max_running: int = Field(16, ge=1, description="Requests computed at a time.")
    max_running_tokens: int = Field(
        131_072,
        ge=1,
        description="Tokens of KV of the requests computed at a time, prompts and `max_tokens` "
        "together; further requests wait, and a request that needs more by itself gets a 400.",
    )
    max_step_tokens: int = Field(
        512, ge=1, description="Tokens computed in one step; longer prompts take several steps."
    )
    chunks: dict[str, Any] = Field(
        {},
        description="Settings of chunk reuse, see below; without `fill`, "
        "`public_key` and `step_tokens`.",
    )
    graph_attention: Literal["auto", "dependency", "subgraphs", "self"] = Field(
        "auto",
        description="Attention over the relation paths of a request. self: over their text, as any "
        "prompt; subgraphs: over their text, with each subgraph's KV computed alone and reused; "
        "dependency: dependency attention, which costs accuracy if the model was not tuned for it; "
        "auto: dependency for tuned models, else self.",
    )
    kv_events_endpoint: str | None = Field(
        None,
        description="ZeroMQ address to bind and publish cache events on, such as "
        "tcp://127.0.0.1:5557; None: no events. Past ones are replayed on a free port.",
    )

    @property
    def is_builtin(self) -> bool:
        """The model is one of the two that need no files."""
        return self.model is None or str(self.model) == TINY_MODEL


def _check_zmq_address(value: str) -> str:
    if not value.startswith(("tcp://", "ipc://")):
        raise ValueError("must begin with tcp:// or ipc://")
    return value


_ZmqAddress = Annotated[str, AfterValidator(_check_zmq_address)]


class EngineHookSettings(Section):
    """Cache events of the backend's engine."""

    endpoint: _ZmqAddress | None = Field(
        None,
        description="ZeroMQ address of the backend's KV events; tcp://*:PORT waits there for an "
        "engine that connects to tcp://HOST:PORT. None: ask the backend.",
    )
    replay_endpoint: _ZmqAddress | None = Field(
        None, description="ZeroMQ address for replays of past events, if `endpoint` is set."
    )
    report_url: str | None = Field(
        None,
        description="URL of the proxy to which RAGBoost's plug-in reports. Set it in the engine's "
        "process.",
    )
    report_key: SecretStr | None = Field(
        None,
        description="Key of the plug-in's reports, which is no client's key. Set it in the proxy's "
        "process and in the engine's. None: reports are accepted from the proxy's own machine, "
        "unless clients need keys.",
    )
    report_stream: str | None = Field(
        None,
        description="Name of the reports: the name of this backend if there are several. Set it in "
        "the engine's process. None: the host name.",
    )
