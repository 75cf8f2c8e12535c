"""SGLang's radix cache with chunk reuse: `--radix-cache-backend ragboost`. A waiting request's
stored chunks are reported as a hit on the host; when it is admitted they are written into slots
that only it owns. The tree takes KV up to the first approximate page, so that exact requests cannot
meet it, nor cache events announce it."""

import atexit
import logging
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import (
    InitLoadBackParams,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.registry import create_unified_radix_cache, default_radix_cache_factory
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from ragboost.chunk_cache.core.fill import FilledPrompt
from ragboost.chunk_cache.core.prompt_plan import PromptPlan
from ragboost.chunk_cache.core.reusing_request import ChunkCapture
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.http.announcements import AnnouncementInbox
from ragboost.chunk_cache.http.reports import ReportSender, start_failure
from ragboost.chunk_cache.sglang.compat import (
    allocate_slots,
    free_slots,
    prefix_slots,
    prompt_slots,
    refusal,
)
from ragboost.chunk_cache.sglang.flags import instance, publish, read_settings
from ragboost.chunk_cache.sglang.scheduler import PoolRequest, PoolScheduler
from ragboost.chunk_cache.sglang.worker import PoolFiller, make_filler

logger = logging.getLogger(__name__)
_STEP_TOKENS = 8192  # where SGLang does not limit a prefill


class ChunkRadixCache(UnifiedRadixCache):  # type: ignore[misc]  # SGLang is untyped here
    scheduler: PoolScheduler | None = None  # chunk reuse of requests; None if it is off
    _filler: PoolFiller

    def start(self, context: Any, settings: EngineChunkSettings) -> None:
        limit = context.params.chunked_prefill_size
        rows = limit if limit and limit > 0 else _STEP_TOKENS
        self._filler = make_filler(context, self, settings=settings, rows=rows)
        self._is_first_rank = context.tp_rank == 0
        self._private: dict[str, torch.Tensor] = {}  # filled slots until a request's row has them
        self._reports = ReportSender()
        self.scheduler = PoolScheduler(
            self._filler, settings=settings, page_size=self.page_size, step_tokens=rows
        )
        inbox = AnnouncementInbox(
            instance(context.server_args.port),
            rank=context.tp_rank,
            library=lambda: self._filler.library,
        )
        atexit.register(inbox.close)
        atexit.register(self._filler.close)

    def reset(self) -> None:
        super().reset()
        if self.scheduler is None:
            return
        self.scheduler.stop_filling()
        if not self._filler.check_weights():  # SGLang empties the tree after new weights
            self.scheduler.forget_chunks()

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        result = super().match_prefix(params)
        req = params.req
        request = None if self.scheduler is None or req is None else self.scheduler.find(req)
        if request is None or self.scheduler is None or req.kv.holds_kv:
            return result
        free_slots(self, self._private.pop(req.rid, None))
        hit = self.scheduler.hit(
            request, prefix_tokens=result.device_prefix_len, limit=len(params.key)
        )
        if not hit:
            return result
        return result._replace(
            last_host_node=result.last_device_node,
            best_match_node=result.last_device_node,
            host_hit_length=hit,
            full_kv_hit_length=max(result.full_kv_hit_length, result.device_prefix_len + hit),
        )

    def init_load_back(self, params: InitLoadBackParams) -> tuple[int, Any] | None:
        """Fill the KV of an admitted request; None: it waits for the next step. Before its last
        step a filling has no slots, so that nothing is left of an aborted request."""
        req = params.req
        request = None if self.scheduler is None else self.scheduler.find(req)
        if request is None or self.scheduler is None:
            loaded: tuple[int, Any] | None = super().init_load_back(params)
            return loaded
        plan = self.scheduler.plan(request)
        promised = params.host_hit_length
        if isinstance(plan, str) or plan.stop != req.prefix_len + promised:
            return self._decline(req, request, "evicted")
        rows = self.scheduler.rows(request, plan)
        if rows == 0:
            return None
        filled = slots = None
        is_fine = True
        try:
            filled = self._advance(req, request, plan, rows)
            if filled is not None:
                slots = allocate_slots(self, promised)
            if filled is not None and slots is not None:
                self._filler.finish(plan, filled, slots)
        except Exception:  # it would end the engine
            logger.exception("the KV of a prompt could not be filled")
            is_fine = False
        if not self._filler.model.ranks.agree(is_fine):
            free_slots(self, slots)
            self.scheduler.failed(request)
            return self._decline(req, request, "failed")
        if filled is None:
            return None
        if slots is None:
            return self._decline(req, request, "no_room")
        self.scheduler.filled(request, plan, filled)
        self._private[req.rid] = slots
        return promised, req.last_node

    def load_back_is_cache_owned(self) -> bool:
        """Return False: filled slots belong to the request."""
        return self.scheduler is None and bool(super().load_back_is_cache_owned())

    def prefix_device_indices(self, req: Any) -> torch.Tensor:
        slots = self._private.pop(req.rid, None) if self.scheduler is not None else None
        if slots is None:
            own: torch.Tensor = super().prefix_device_indices(req)
            return own
        return torch.cat([prefix_slots(self, req)[: req.prefix_len - len(slots)], slots])

    def checkpoint(self, req: Any, *, up_to: int, **options: Any) -> None:
        """Take chunks out of a computed prompt, and let the tree have its exact part."""
        request = None if self.scheduler is None else self.scheduler.find(req)
        if request is not None and self.scheduler is not None:
            self._capture(req, self.scheduler.captures(request, up_to))
            if request.exact_stop is not None:
                up_to = min(up_to, request.exact_stop)
        super().checkpoint(req, up_to=up_to, **options)

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        super().on_release(req, checkpointed=checkpointed)
        if self.scheduler is None:
            return
        if not req.finished():  # retracted: it waits again
            request = self.scheduler.find(req)
            if request is not None:
                self.scheduler.forget_fill(request)
            return
        report = self.scheduler.finish(req)
        if report is not None and self._is_first_rank:
            self._reports.send(*report)

    def release_aborted_request(self, handle: Any) -> None:
        super().release_aborted_request(handle)
        if self.scheduler is not None:
            free_slots(self, self._private.pop(handle.rid, None))
            self.scheduler.abandon(handle.rid)

    def _advance(
        self, req: Any, request: PoolRequest, plan: PromptPlan, rows: int | None
    ) -> FilledPrompt | None:
        assert self.scheduler is not None, "chunk reuse is off"
        steps = request.steps
        if steps is None:
            steps = self._filler.begin(plan, prefix_slots(self, req)[: plan.prefix_tokens])
        filled: FilledPrompt | None = self._filler.advance(steps, rows=rows)
        if filled is None:
            self.scheduler.pause(request, plan, steps)
        return filled

    def _decline(self, req: Any, request: PoolRequest, reason: str) -> tuple[int, Any]:
        assert self.scheduler is not None, "chunk reuse is off"
        self.scheduler.stop_filling(request)
        request.reason = reason
        req.host_hit_length = 0
        return 0, req.last_node

    def _capture(self, req: Any, chunks: list[ChunkCapture]) -> None:
        for chunk in chunks:
            try:
                slots = prompt_slots(self, req, chunk.start, len(chunk.tokens))
                self._filler.capture(chunk, slots)
            except Exception:  # it would end the engine
                logger.exception("a chunk could not be stored")


def make_cache(context: Any) -> Any:
    """Return SGLang's radix cache for a `TreeCacheBuildContext`, with chunk reuse if possible."""
    settings = read_settings(context.server_args)
    cache = None
    try:
        reason = refusal(context)
        if reason is None:
            cache = create_unified_radix_cache(context, cache_class=ChunkRadixCache)
            cache.start(context, settings)
    except Exception as error:  # the engine serves without reuse
        reason = start_failure(error)
    if cache is None:
        cache = default_radix_cache_factory(context)
    publish(context, reason)
    return cache
