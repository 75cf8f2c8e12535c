"""Chunk reuse in the engine: fill prompts from stored chunks, and store the chunks they compute.
Belongs to the engine thread. Does not know how steps are planned."""

import logging
import time
from collections.abc import Iterable
from typing import NamedTuple

from ragboost.chunk_cache.core.fill import FilledPrompt, fill_steps, keep_measured
from ragboost.chunk_cache.core.prompt_plan import PromptPlan, find_chunks, find_loads, plan_prompt
from ragboost.chunk_cache.core.request import in_namespace
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.core.token_origins import TokenOrigins
from ragboost.chunk_cache.model.pace import Pace, Steps
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.store.load_table import MAX_WAIT_S
from ragboost.engine.runtime.filling import COMPUTE_ERRORS, PromptFiller
from ragboost.engine.runtime.request import EngineRequest
from ragboost.errors import RagBoostError

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
        if request.chunks is None:
            return
        options = request.chunks = in_namespace(request.chunks, request.salt)
        library, tokens = self.reuse.library, request.prompt.token_ids
        request.chunk_keys = find_chunks(options, tokens, library)
        if options.reason is not None:  # computed exactly, and stored
            return
        beginning = library.key(tokens[: options.beginning], tenant=options.tenant)
        lengths = {beginning: options.beginning}
        lengths |= find_loads(options, request.chunk_keys, library)
        request.awaited_keys, request.awaits_since = list(lengths), time.monotonic()
        try:
            self.reuse.store.prefetch(lengths)
        except COMPUTE_ERRORS as error:  # such as no room for a thread
            logger.warning("stored chunks are not loaded ahead: %s", error)

    def renew(self, unfinished: Iterable[EngineRequest]) -> bool:
        """If the model's weights were changed in place, find and store no KV of the former ones any
        more, also for unfinished requests, and return True."""
        library = self.reuse.library.renewed(self.reuse.adapter)
        if library is self.reuse.library:
            return False
        self.reuse.library = library
        for request in unfinished:
            request.chunk_keys = {}
        return True

    def is_loading(self, request: EngineRequest) -> bool:
        """Return True while stored chunks of a request are on their way, and waiting is expected to
        be faster than computing; not for loads that later requests have started."""
        if time.monotonic() - request.awaits_since > MAX_WAIT_S:
            return False
        return self.reuse.store.is_loading(request.awaited_keys)

    def begin(self, request: EngineRequest, pace: Pace) -> Steps[PlannedFilling | None]:
        options, tokens = request.chunks, request.prompt.token_ids
        assert options is not None, "a request without chunk reuse"
        library, prefix_tokens, prefix = self.reuse.library, request.num_computed, None
        if prefix_tokens < options.beginning:
            prefix = library.find_beginning(tokens, options.beginning, tenant=options.tenant)
            prefix_tokens = prefix_tokens if prefix is None else options.beginning
        plan = plan_prompt(
            options, tokens, prefix_tokens=prefix_tokens, keys=request.chunk_keys, library=library
        )
        if isinstance(plan, str):  # computed exactly
            return None
        filled = yield from fill_steps(
            self.reuse.adapter,
            plan,
            prefix=prefix,
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
        for number, kv in enumerate(plan.stored):
            if kv is not None:  # taken out again, it would be approximate
                request.chunk_keys.pop(number, None)
        exact_until = plan.approximate if filled.counts.reused else None
        request.continue_at(plan.stop, filled.counts, exact_until=exact_until)

    def refuse(self, request: EngineRequest, error: RagBoostError) -> None:
        logger.warning("computing a whole prompt instead of reusing chunks: %s", error)
        request.is_filling = False

    def finish_prompt(self, request: EngineRequest) -> None:
        """Store new chunks of a computed prompt."""
        if request.chunks is None or request.origins is None:
            return
        self.totals = TokenOrigins(*map(sum, zip(self.totals, request.origins, strict=True)))
        try:
            self._keep(request)
        except COMPUTE_ERRORS as error:  # such as no memory for the copies
            logger.warning("chunks not stored: %s", error)

    def close(self) -> None:
        super().close()
        self.reuse.store.close()

    def _keep(self, request: EngineRequest) -> None:
        options, end = request.chunks, request.num_prompt_tokens
        assert options is not None, "a request without chunk reuse"
        self.num_stored += self.reuse.keep(
            _prompt_cache(request),
            request.prompt.token_ids,
            [options.chunks[number] for number in request.chunk_keys],
            num_system=options.beginning,
            num_exact=end if request.exact_until is None else request.exact_until,
            tenant=options.tenant,
        )


def _prompt_cache(request: EngineRequest) -> RequestCache:
    assert request.kv is not None, "a request without KV"
    end = request.num_prompt_tokens
    return RequestCache(
        [(keys[None, :, :end], values[None, :, :end]) for keys, values in request.kv.layers]
    )
