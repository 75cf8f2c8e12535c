"""Ask every backend the same question again and again, as long as it is one of the backends."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from ragboost.proxy.upstream.backend import Backend

_RETRY_S = 2.0
_RECHECK_S = 30.0

T = TypeVar("T")


class BackendWatch(ABC, Generic[T]):
    """The backends' last answers. `open` and `close` belong to the event loop.

    A backend that is added has no answer before it has given one; one that is removed is forgotten.
    """

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._backends = list(backends)
        self._answers: dict[str, T] = {}  # by backend
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by backend

    def add(self, backend: Backend) -> None:
        self._backends.append(backend)
        self._update()
        self._tasks[backend.name] = asyncio.create_task(self._watch(backend))

    def remove(self, backend: Backend) -> None:
        self._backends.remove(backend)
        self._tasks.pop(backend.name).cancel()
        self._answers.pop(backend.name, None)
        self._update()

    async def open(self) -> None:
        for backend in self._backends:
            if backend.name not in self._tasks:
                self._tasks[backend.name] = asyncio.create_task(self._watch(backend))

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _watch(self, backend: Backend) -> None:
        while True:
            is_answered = await self._ask(backend)
            self._update()
            await asyncio.sleep(_RECHECK_S if is_answered else _RETRY_S)

    @abstractmethod
    async def _ask(self, backend: Backend) -> bool:
        """Ask one backend and keep its answer; return False if it gave none."""

    @abstractmethod
    def _update(self) -> None:
        """Derive what follows from the answers of all backends."""
