"""Ask the backends whether they reuse chunks.

The embedded engine, and vLLM and SGLang with our plug-in, say so at `/chunk_reuse`. With several
backends all of them must reuse chunks, since a request may move from one to another.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from ragboost.config import BackendSettings
from ragboost.proxy.upstream.backend import Backend
from ragboost.proxy.upstream.backend_watch import BackendWatch
from ragboost.requests.graph_documents import graph_as_documents

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


class ChunkReuseProbe(BackendWatch[ReuseReport]):
    """Know whether the backends reuse chunks; nothing is reused before all have answered.

    The setting `reuse_chunks` answers for all backends, and leaves their recompute ratio unknown;
    whether they read graphs is asked in any case.
    """

    def __init__(self, settings: BackendSettings, backends: Sequence[Backend]) -> None:
        super().__init__(backends)
        self._configured = settings.reuse_chunks
        self.is_supported = bool(settings.reuse_chunks)  # by all backends
        self._report = ReuseReport()  # the latest one of those that reuse chunks

    @property
    def reads_graphs(self) -> bool:
        reports = self._answers
        return all(b.name in reports and reports[b.name].graphs for b in self._backends)

    def may_reuse(self, reuse: Any) -> bool:
        """Return True if a request with this `ragboost.reuse` may have chunks reused."""
        is_default = self._report.default == "approx"  # requests that do not ask for it have it
        return self.is_supported and (is_default if reuse is None else reuse != "exact")

    def recompute_ratio(self, reuse: Any) -> float | None:
        """Return the share of reused tokens that a request with this `ragboost.reuse` computes
        again, if it has the positions of its chunks.

        None if it computes all exactly, or if that is unknown.
        """
        if not self.may_reuse(reuse):
            return None
        ratio = self._report.ratio
        if isinstance(reuse, dict):
            ratio = reuse.get("ratio", ratio)
        elif reuse not in (None, "approx"):
            return None
        is_number = isinstance(ratio, int | float) and not isinstance(ratio, bool)
        return ratio if is_number and ratio is not None and 0 <= ratio <= 1 else None

    def readable(self, raw: bytes, *, has_chunks: bool) -> bytes:
        """Return a request's body with documents in place of a graph, unless the backends read it.

        A RequestError is raised if the graph is malformed, or asks for more than the backends can
        do.
        """
        if self.reads_graphs:
            return raw
        return graph_as_documents(raw, can_reuse=self.is_supported and has_chunks)

    async def _ask(self, backend: Backend) -> bool:
        answer = await backend.fetch("/chunk_reuse")
        report = self._answers[backend.name] = _read(answer)
        if self._configured is None and report.is_possible:
            self._report = report
        return answer is not None

    def _update(self) -> None:
        if self._configured is None:
            num_reusing = sum(each.is_possible for each in self._answers.values())
            self.is_supported = 0 < num_reusing == len(self._backends)


def _read(answer: bytes | None) -> ReuseReport:
    try:
        return msgspec.json.decode(answer or b"{}", type=ReuseReport)
    except msgspec.DecodeError:
        return ReuseReport()  # the answer of another server
