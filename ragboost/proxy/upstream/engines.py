"""Ask the backends again and again what they are, and whether they reuse chunks.

The embedded engine, and vLLM and SGLang with our plug-in, say the latter at `/chunk_reuse`. With
several backends all of them must reuse chunks, since a request may move from one to another.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from ragboost.config import BackendSettings
from ragboost.errors import BackendError
from ragboost.proxy.upstream.backend import Backend
from ragboost.requests.graph_documents import graph_as_documents
from ragboost.requests.wires.normal_form import EngineKind
from ragboost.util.jsonl import json_value

Ask = Callable[[str], Awaitable[tuple[int, bytes]]]
"""Sends a GET and returns status and body."""

_RETRY_S = 2.0
_RECHECK_S = 30.0
_USUAL_RATIO = 0.15  # the plug-in's default, where the engine does not say its own

PROXY_REFUSAL = "this RAGBoost proxy adds chunk positions itself"
"""What a proxy answers at `/chunk_reuse`, by which another one and `doctor` recognise it."""

_REFUSALS: Mapping[str, str] = MappingProxyType(
    {
        "untested_version": "it was not tested with this version of the engine",
        "pipeline_parallel": "it does not work with pipeline parallelism",
        "data_parallel": "it does not work with data parallelism",
        "expert_parallel": "it does not work with expert parallelism",
        "context_parallel": "it does not work with context parallelism",
        "several_nodes": "the engine runs on several nodes",
        "worker_processes": "a worker of the engine has not reported that it can",
        "several_connectors": "it does not work beside another KV connector",
        "lora": "the engine serves LoRA adapters",
        "speculative_decoding": "it does not work with speculative decoding",
        "mla": "the model has latent attention (MLA)",
        "encoder_decoder": "the model is an encoder-decoder",
        "multimodal_positions": "the model has multimodal positions (M-RoPE)",
        "pooling_model": "the model generates no text",
        "diffusion_model": "the model generates by diffusion",
        "hybrid_model": "the model has layers without full attention",
        "quantised_kv": "the KV cache is quantised",
        "kv_layout": "the KV cache has a layout that is not supported",
        "several_block_sizes": "the KV cache has several block sizes",
        "hierarchical_cache": "it does not work with the engine's hierarchical cache",
        "no_prefix_cache": "the engine's prefix cache is off",
        "disaggregation": "it does not work where prefill and decoding are separate",
        "self_test": "its test at the start failed",
        "engine_internals": "the engine's internals are not those that it knows",
    }
)


def explain_refusal(refusal: str) -> str:
    code, colon, details = refusal.partition(":")
    return f"{_REFUSALS.get(code, code)}{colon}{details}"


class ReuseReport(msgspec.Struct):
    is_possible: bool = False
    default: str = ""  # of requests that do not say: exact or approx
    ratio: float | None = None  # recompute ratio of these; None: unknown
    graphs: bool = False  # it reads `ragboost.graph`


class Engines:
    """Knows what renders the backends' prompts, and what chunks these reuse: nothing before all
    have answered. `open` and `close` belong to the event loop.

    The setting `reuse_chunks` answers for all backends, whose recompute ratio is then taken for the
    usual one; whether they read graphs is asked in any case. A backend that is added has no answer
    before it has given one; one that is removed is forgotten.
    """

    def __init__(self, settings: BackendSettings, backends: Sequence[Backend]) -> None:
        self._backends = list(backends)
        self._tasks: dict[str, asyncio.Task[None]] = {}  # these three by name of the backend
        self._kinds: dict[str, EngineKind] = {}
        self._reports: dict[str, ReuseReport] = {}
        self._configured = settings.reuse_chunks
        self._report = ReuseReport()  # the latest one of those that reuse chunks
        self._update()

    def add(self, backend: Backend) -> None:
        self._backends.append(backend)
        self._update()
        self._tasks[backend.name] = asyncio.create_task(self._watch(backend))

    def remove(self, backend: Backend) -> None:
        self._backends.remove(backend)
        self._tasks.pop(backend.name).cancel()
        self._kinds.pop(backend.name, None)
        self._reports.pop(backend.name, None)
        self._update()

    async def open(self) -> None:
        for backend in self._backends:
            if backend.name not in self._tasks:
                self._tasks[backend.name] = asyncio.create_task(self._watch(backend))

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    @property
    def reads_graphs(self) -> bool:
        reports = self._reports
        return all(b.name in reports and reports[b.name].graphs for b in self._backends)

    def may_reuse(self, reuse: Any) -> bool:
        """Return True if a request with this `ragboost.reuse` may have chunks reused."""
        is_default = self._report.default == "approx"  # requests that do not ask for it have it
        return self.is_supported and (is_default if reuse is None else reuse != "exact")

    def recompute_ratio(self, reuse: Any) -> float | None:
        """Return the share of reused tokens that a request with this `ragboost.reuse` computes
        again, if it has the positions of its chunks.

        None if it computes all exactly, or if the engine will refuse what the request says.
        """
        if not self.may_reuse(reuse):
            return None
        ratio: Any = self._report.ratio
        if ratio is None:
            ratio = _USUAL_RATIO
        if isinstance(reuse, dict):
            ratio = reuse.get("ratio", ratio)
        elif reuse not in (None, "approx"):
            return None
        is_number = isinstance(ratio, int | float) and not isinstance(ratio, bool)
        return ratio if is_number and 0 <= ratio <= 1 else None

    def readable(self, raw: bytes, *, has_chunks: bool) -> bytes:
        """Return a request's body with documents in place of a graph, unless the backends read it.

        A RequestError is raised if the graph is malformed, or asks for more than the backends can
        do.
        """
        if self.reads_graphs:
            return raw
        return graph_as_documents(raw, can_reuse=self.is_supported and has_chunks)

    async def _watch(self, backend: Backend) -> None:
        while True:
            answer = await backend.fetch("/chunk_reuse")
            self._reports[backend.name] = report = _read(answer)
            if self._configured is None and report.is_possible:
                self._report = report
            kind = await find_kind(backend.ask)
            if kind is not None:  # an engine that is down comes back as what it was
                self._kinds[backend.name] = kind
            self._update()
            await asyncio.sleep(_RETRY_S if answer is None or kind is None else _RECHECK_S)

    def _update(self) -> None:
        kinds = {self._kinds.get(backend.name, "") for backend in self._backends}
        # Of all backends; empty before all have answered.
        self.kind: EngineKind = next(iter(kinds)) if len(kinds) == 1 else ""
        num_reusing = sum(each.is_possible for each in self._reports.values())
        self.is_supported = self._configured or False  # by all backends
        if self._configured is None:
            self.is_supported = 0 < num_reusing == len(self._backends)


def _read(answer: bytes | None) -> ReuseReport:
    try:
        return msgspec.json.decode(answer or b"{}", type=ReuseReport)
    except msgspec.DecodeError:
        return ReuseReport()  # the answer of another server


def owner_of(models: Any) -> str:
    """Return who serves the first model of a list of models; empty if that is not said."""
    data = models.get("data") if isinstance(models, dict) else None
    first = data[0] if isinstance(data, list) and data else None
    return str(first.get("owned_by") or "") if isinstance(first, dict) else ""


async def find_kind(ask: Ask) -> EngineKind | None:
    """Return the kind of a backend; None if it does not answer."""
    try:
        status, models = await ask("/v1/models")
        owner = owner_of(json_value(models)) if status == 200 else ""
        if owner == "vllm":
            return "vllm"
        if owner == "sglang":
            return "sglang"
        # Models may need a key that only clients have; the metrics of engines need none.
        has_metrics, metrics = await ask("/metrics")
        if has_metrics == 200 and b"\nvllm:" in metrics:
            return "vllm"
        if has_metrics == 200 and b"\nsglang:" in metrics:
            return "sglang"
        status, _ = await ask("/health")
    except BackendError:
        return None
    return "" if has_metrics == 200 or status == 200 else "hosted"
