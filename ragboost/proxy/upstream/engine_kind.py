"""Ask the backends what renders their prompts: vLLM, SGLang, a hosted API or something else."""

import asyncio
from collections.abc import Sequence
from typing import Any

from ragboost.errors import BackendError
from ragboost.jsonl import json_value
from ragboost.proxy.upstream.backend import Backend
from ragboost.wires.normal_form import EngineKind

_RETRY_S = 2.0
_RECHECK_S = 30.0


def owner_of(models: Any) -> str:
    """Return who serves the first model of a list of models; empty if that is not said."""
    data = models.get("data") if isinstance(models, dict) else None
    first = data[0] if isinstance(data, list) and data else None
    return str(first.get("owned_by") or "") if isinstance(first, dict) else ""


class EngineKinds:
    """Know the kind of the backends. `open` and `close` belong to the event loop."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._backends = list(backends)
        self._kinds: dict[str, EngineKind] = {}  # by backend
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by backend
        self.common: EngineKind = ""  # of all backends; empty before all have answered

    def add(self, backend: Backend) -> None:
        self._backends.append(backend)
        self._update()
        self._tasks[backend.name] = asyncio.create_task(self._watch(backend))

    def remove(self, backend: Backend) -> None:
        self._backends.remove(backend)
        self._tasks.pop(backend.name).cancel()
        self._kinds.pop(backend.name, None)
        self._update()

    async def open(self) -> None:
        for backend in self._backends:
            if backend.name not in self._tasks:
                self._tasks[backend.name] = asyncio.create_task(self._watch(backend))

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _update(self) -> None:
        kinds = {self._kinds.get(backend.name, "") for backend in self._backends}
        self.common = next(iter(kinds)) if len(kinds) == 1 else ""

    async def _watch(self, backend: Backend) -> None:
        while True:
            kind = await find_kind(backend)
            if kind is not None:  # an engine that is down comes back as what it was
                self._kinds[backend.name] = kind
                self._update()
            await asyncio.sleep(_RETRY_S if kind is None else _RECHECK_S)


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
