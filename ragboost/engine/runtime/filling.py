"""Fill the KV of prompts in pieces between the steps of an engine, one prompt at a time."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from ragboost.chunk_cache.model.pace import Pace, Steps
from ragboost.engine.runtime.request import EngineRequest
from ragboost.errors import RagBoostError

T = TypeVar("T")

COMPUTE_ERRORS = (
    RagBoostError,
    RuntimeError,  # torch's, such as out of memory
    MemoryError,
    LookupError,
    ValueError,
    ArithmeticError,
)
"""Errors of a computation that say nothing about the state of the engine."""


class PromptFiller(ABC, Generic[T]):
    def __init__(self) -> None:
        self.filling: EngineRequest | None = None  # whose filling has begun and not ended
        self._steps: Steps[T] | None = None
        self._pace = Pace()

    def fill(self, request: EngineRequest, *, rows: int) -> None:
        """Compute one piece of a prompt; it is done once `request.is_filling` is false."""
        if self._steps is None:
            self.filling, self._steps = request, self.begin(request, self._pace)
        assert self.filling is request, "one prompt is filled at a time"
        self._pace.limit(rows)
        is_done = True
        try:
            next(self._steps)
            is_done = False
        except StopIteration as end:
            request.is_filling = False
            self.apply(request, end.value)
        except RagBoostError as error:
            self.refuse(request, error)
        finally:
            if is_done:
                self.cancel(request)

    def cancel(self, request: EngineRequest) -> None:
        if self._steps is not None and self.filling is request:
            self._steps.close()
            self.filling = self._steps = None

    def close(self) -> None:
        if self.filling is not None:
            self.cancel(self.filling)

    @abstractmethod
    def begin(self, request: EngineRequest, pace: Pace) -> Steps[T]: ...

    @abstractmethod
    def apply(self, request: EngineRequest, result: T) -> None: ...

    @abstractmethod
    def refuse(self, request: EngineRequest, error: RagBoostError) -> None:
        """Do without: the filling is not possible."""
