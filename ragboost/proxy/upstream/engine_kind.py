"""Ask the backends what renders their prompts: vLLM, SGLang, a hosted API or something else."""

from collections.abc import Sequence
from typing import Any

from ragboost.errors import BackendError
from ragboost.proxy.upstream.backend import Backend
from ragboost.proxy.upstream.backend_watch import BackendWatch
from ragboost.requests.wires.normal_form import EngineKind
from ragboost.util.jsonl import json_value


def owner_of(models: Any) -> str:
    """Return who serves the first model of a list of models; empty if that is not said."""
    data = models.get("data") if isinstance(models, dict) else None
    first = data[0] if isinstance(data, list) and data else None
    return str(first.get("owned_by") or "") if isinstance(first, dict) else ""


class EngineKinds(BackendWatch[EngineKind]):
    """Know the kind of the backends."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        super().__init__(backends)
        self.common: EngineKind = ""  # of all backends; empty before all have answered

    async def _ask(self, backend: Backend) -> bool:
        kind = await find_kind(backend)
        if kind is not None:  # an engine that is down comes back as what it was
            self._answers[backend.name] = kind
        return kind is not None

    def _update(self) -> None:
        kinds = {self._answers.get(backend.name, "") for backend in self._backends}
        self.common = next(iter(kinds)) if len(kinds) == 1 else ""


async def find_kind(backend: Backend) -> EngineKind | None:
    """Return the kind of a backend; None if it does not answer."""
    models = await backend.fetch("/v1/models")
    owner = owner_of(json_value(models or b""))
    if models is None:
        return None
    if owner == "vllm":
        return "vllm"
    if owner == "sglang":
        return "sglang"
    # Models may need a key that only clients have; the metrics of engines need none.
    metrics = await backend.fetch("/metrics") or b""
    if b"\nvllm:" in metrics:
        return "vllm"
    if b"\nsglang:" in metrics:
        return "sglang"
    try:
        status, _ = await backend.ask("/health")
    except BackendError:
        return None
    return "" if metrics or status == 200 else "hosted"
