"""Fill the KV of prompts in pieces between the steps of an engine, one at a time: from stored
chunks, or by dependency attention (DepCache). Belongs to the engine thread."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from ragboost.chunk_cache.core.fill import FilledPrompt, fill_steps, keep_measured
from ragboost.chunk_cache.core.prompt_plan import PromptPlan
from ragboost.chunk_cache.core.request import TokenOrigins
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.core.reusing_request import ReusingRequest
from ragboost.chunk_cache.model.pace import Pace, Steps
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.engine.runtime.request import EngineRequest
from ragboost.errors import RagBoostError
from ragboost.graph.depcache import DepCache, DepKV

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


logger = logging.getLogger(__name__)


class PlannedFilling(NamedTuple):
    plan: PromptPlan
    filled: FilledPrompt


class ChunkFiller(PromptFiller[PlannedFilling | None]):
    def __init__(self, reuse: ChunkReuse) -> None:
        super().__init__()
        self.reuse = reuse
        self.totals = TokenOrigins()  # of all prompts with chunk reuse
        self.num_stored = 0

    def add(self, request: EngineRequest) -> None:
        """Find the chunks of a request that begins to wait, and load them meanwhile."""
        if (options := request.prompt.chunks) is None:
            return
        tokens, library = request.prompt.token_ids, self.reuse.library
        try:
            request.asked = ReusingRequest.begin(
                "", options, tokens, namespace=[request.salt], library=library
            )
        except COMPUTE_ERRORS as error:
            logger.warning("chunks are not reused: %s", error)
            request.is_filling = False

    def renew(self, unfinished: Iterable[EngineRequest]) -> bool:
        """If the model's weights were changed in place, find and store no KV of the former ones any
        more, also for unfinished requests, and return True."""
        library = self.reuse.library.renewed(self.reuse.adapter)
        if library is self.reuse.library:
            return False
        self.reuse.library = library
        for request in unfinished:
            if request.asked is not None:
                request.asked.forget_chunks()
        return True

    def is_loading(self, request: EngineRequest) -> bool:
        """Return True while stored chunks of a request are on their way, and waiting is expected to
        be faster than computing."""
        asked = request.asked
        if asked is None or asked.options.reason is not None:
            return False
        return asked.awaits_chunks(self.reuse.library, prefix_tokens=0)

    def begin(self, request: EngineRequest, pace: Pace) -> Steps[PlannedFilling | None]:
        asked = request.asked
        assert asked is not None, "a request without chunk reuse"
        plan = asked.plan(self.reuse.library, prefix_tokens=request.num_computed)
        if isinstance(plan, str):  # computed exactly
            return None
        filled = yield from fill_steps(
            self.reuse.adapter,
            plan,
            prefix=None,
            backend=self.reuse.backend,
            pace=pace,
            into=_prompt_cache(request),
        )
        return PlannedFilling(plan, filled)

    def apply(self, request: EngineRequest, result: PlannedFilling | None) -> None:
        if result is None:
            return
        plan, filled = result
        keep_measured(self.reuse.adapter, self.reuse.library, plan, filled)
        assert request.asked is not None, "a request without chunk reuse"
        request.asked.keep_stored(plan)
        exact_until = plan.approximate if filled.counts.reused else None
        request.continue_at(plan.stop, filled.counts, exact_until=exact_until)

    def refuse(self, request: EngineRequest, error: RagBoostError) -> None:
        logger.warning("computing a whole prompt instead of reusing chunks: %s", error)
        request.is_filling = False

    def finish_prompt(self, request: EngineRequest) -> None:
        """Store new chunks of a computed prompt."""
        asked = request.asked
        if asked is None or request.origins is None:
            return
        self.totals = TokenOrigins(*map(sum, zip(self.totals, request.origins, strict=True)))
        try:
            chunks = asked.take_captures(
                self.reuse.library,
                pass_start=0,
                num_computed=request.num_prompt_tokens,
                exact_stop=request.exact_until,
            )
            self.num_stored += self.reuse.take(_prompt_cache(request), asked.tokens, chunks)
        except COMPUTE_ERRORS as error:  # such as no memory for the copies
            logger.warning("chunks not stored: %s", error)

    def close(self) -> None:
        super().close()
        self.reuse.store.close()


def _prompt_cache(request: EngineRequest) -> RequestCache:
    assert request.kv is not None, "a request without KV"
    return request.kv.cache(request.num_prompt_tokens)


class GraphRunner(PromptFiller[DepKV]):
    """Computes the prompts of graph requests, except for their last token."""

    def __init__(self, depcache: DepCache) -> None:
        super().__init__()
        self._depcache = depcache

    def look_ahead(self, waiting: Iterable[EngineRequest]) -> None:
        self._depcache.look_ahead(
            lambda: [(r.prompt.graph, r.salt or "") for r in waiting if r.prompt.graph]
        )

    def renew(self) -> None:
        """Forget the KV of former weights."""
        if self._depcache.tree is not None:
            self._depcache.tree.clear()

    def begin(self, request: EngineRequest, pace: Pace) -> Steps[DepKV]:
        layout, kv, salt = request.prompt.graph, request.kv, request.salt or ""
        assert layout is not None, "a request without a graph"
        assert kv is not None, "a request without KV"
        cache = kv.cache(len(layout))
        for layer in cache.layers:  # masked KV is multiplied by 0 and must be finite
            layer.keys.zero_()
            layer.values.zero_()
        return (yield from self._depcache.steps(layout, salt=salt, into=cache, pace=pace))

    def apply(self, request: EngineRequest, result: DepKV) -> None:
        # No KV here equals that of a plain prefill, in value or in place.
        origins = TokenOrigins(reused=result.num_reused, computed=len(result.computed))
        request.continue_at(request.num_prompt_tokens - 1, origins, exact_until=0)

    def refuse(self, request: EngineRequest, error: RagBoostError) -> None:
        raise error  # there is no other way to compute a tree
