"""SGLang's radix cache with chunk reuse: `--radix-cache-backend ragboost`.

A waiting request with stored chunks reports them as a hit on the host; when it is admitted they are
written into slots that only this request owns. The tree takes KV up to the first approximate page,
never beyond, so that exact requests cannot meet it, nor cache events announce it. Requests that do
not mention chunks take SGLang's own paths.
"""

import atexit
import logging
from functools import partial
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import (
    EvictParams,
    InitLoadBackParams,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.registry import create_unified_radix_cache, default_radix_cache_factory
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from ragboost.chunk_cache.core.fill import FilledPrompt
from ragboost.chunk_cache.core.prompt_plan import PromptPlan
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.http.replies import ReplySender
from ragboost.chunk_cache.http.status import start_failure
from ragboost.chunk_cache.model.ranks import together
from ragboost.chunk_cache.sglang.compat import find_ranks, refusal
from ragboost.chunk_cache.sglang.filler import SlotFiller
from ragboost.chunk_cache.sglang.flags import publish, read_settings
from ragboost.chunk_cache.sglang.planner import ReusePlanner, ReusingRequest
from ragboost.chunk_cache.sglang.self_test import self_test

logger = logging.getLogger(__name__)
_STEP_TOKENS = 8192  # where SGLang does not limit a prefill


class ChunkRadixCache(UnifiedRadixCache):  # type: ignore[misc]  # SGLang is untyped here
    """SGLang's radix cache, with chunk reuse once `start` has succeeded.

    Attributes:
        planner: chunk reuse of requests; None if it is off.
    """

    planner: ReusePlanner | None = None
    _filler: SlotFiller | None = None

    def start(self, context: Any, settings: EngineChunkSettings) -> None:
        """Switch reuse on, if the model passes the self-test.

        Args:
            context: SGLang's `TreeCacheBuildContext`.
            settings: our own.

        Raises:
            UnsupportedModelError: it does not.
        """
        runner, limit = context.tp_worker.model_runner, context.params.chunked_prefill_size
        rows = limit if limit and limit > 0 else _STEP_TOKENS
        ranks = find_ranks(context)
        make = partial(SlotFiller, runner, ranks=ranks, settings=settings, rows=rows)
        filler = together(ranks, make)
        allocator = self.token_to_kv_pool_allocator
        result = together(ranks, partial(self_test, filler, runner, allocator))
        self._is_first_rank = context.tp_rank == 0
        self._private: dict[str, torch.Tensor] = {}  # filled slots until a request's row has them
        self._replies = ReplySender()
        self._filler = filler
        self.planner = ReusePlanner(
            filler, settings=settings, page_size=self.page_size, step_tokens=rows
        )
        atexit.register(filler.close)
        logger.info("chunk reuse is on: %s, can resume: %s", result, filler.model.can_resume)

    def reset(self) -> None:
        super().reset()
        if self.planner is None or self._filler is None:
            return
        self.planner.stop_filling()
        if not self._filler.check_weights():  # SGLang empties the tree after new weights
            self.planner.forget_chunks()

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """Report stored chunks as a hit on the host."""
        result = super().match_prefix(params)
        req = params.req
        request = None if self.planner is None or req is None else self.planner.find(req)
        if request is None or self.planner is None or req.kv.holds_kv:
            return result
        self._free_private(req.rid)
        hit = self.planner.hit(request, held=result.device_prefix_len, limit=len(params.key))
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
        step a filling has no slots, so that nothing is left of a request that is aborted."""
        req = params.req
        request = None if self.planner is None else self.planner.find(req)
        if request is None or self.planner is None or self._filler is None:
            loaded: tuple[int, Any] | None = super().init_load_back(params)
            return loaded
        plan = self.planner.plan(request)
        promised = params.host_hit_length
        if isinstance(plan, str) or plan.stop != req.prefix_len + promised:
            return self._decline(req, request, "evicted")
        rows = self.planner.rows(request, plan)
        if rows == 0:
            return None
        filled = slots = None
        is_fine = True
        try:
            filled = self._advance(req, request, plan, rows)
            if filled is not None:
                slots = self._allocate(promised)
            if filled is not None and slots is not None:
                self._filler.store(plan, filled, slots=slots)
        except Exception:  # it would end the engine
            logger.exception("the KV of a prompt could not be filled")
            is_fine = False
        if not self._filler.model.ranks.agree(is_fine):
            if slots is not None:
                self.token_to_kv_pool_allocator.free(slots)
            self.planner.failed(request)
            return self._decline(req, request, "failed")
        if filled is None:
            return None
        if slots is None:
            return self._decline(req, request, "no_room")
        self.planner.filled(request, plan, filled)
        self._private[req.rid] = slots
        return promised, req.last_node

    def load_back_is_cache_owned(self) -> bool:
        """Return False: filled slots belong to the request."""
        return self.planner is None and bool(super().load_back_is_cache_owned())

    def prefix_device_indices(self, req: Any) -> torch.Tensor:
        slots = self._private.pop(req.rid, None) if self.planner is not None else None
        if slots is None:
            own: torch.Tensor = super().prefix_device_indices(req)
            return own
        held = self._tree_slots(req)[: req.prefix_len - len(slots)]
        return torch.cat([held, slots])

    def checkpoint(self, req: Any, *, up_to: int, **options: Any) -> None:
        """Take chunks out of a computed prompt, and let the tree have its exact part."""
        request = None if self.planner is None else self.planner.find(req)
        if request is not None and self.planner is not None:
            self._capture(req, self.planner.captures(request, up_to))
            if request.exact_stop is not None:
                up_to = min(up_to, request.exact_stop)
        super().checkpoint(req, up_to=up_to, **options)

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        super().on_release(req, checkpointed=checkpointed)
        if self.planner is None:
            return
        if not req.finished():  # retracted: it waits again
            request = self.planner.find(req)
            if request is not None:
                self.planner.forget_fill(request)
            return
        report = self.planner.finish(req)
        if report is not None and self._is_first_rank:
            self._replies.send(*report)

    def release_aborted_request(self, handle: Any) -> None:
        super().release_aborted_request(handle)
        if self.planner is not None:
            self._free_private(handle.rid)
            self.planner.abandon(handle.rid)

    def _advance(
        self, req: Any, request: ReusingRequest, plan: PromptPlan, rows: int | None
    ) -> FilledPrompt | None:
        """Fill a prompt, or continue with it; return None if that takes another step."""
        assert self.planner is not None, "chunk reuse is off"
        assert self._filler is not None, "chunk reuse is off"
        steps = request.steps
        if steps is None:
            steps = self._filler.begin(plan, held=self._tree_slots(req)[: plan.held])
        filled: FilledPrompt | None = self._filler.advance(steps, rows=rows)
        if filled is None:
            self.planner.pause(request, plan, steps)
        return filled

    def _decline(self, req: Any, request: ReusingRequest, reason: str) -> tuple[int, Any]:
        """Let SGLang compute a request."""
        assert self.planner is not None, "chunk reuse is off"
        self.planner.stop_filling(request)
        request.reason = reason
        req.host_hit_length = 0
        return 0, req.last_node

    def _allocate(self, count: int) -> torch.Tensor | None:
        allocator = self.token_to_kv_pool_allocator
        if allocator.available_size() < count:
            self.evict(EvictParams(num_tokens=count))
        slots: torch.Tensor | None = allocator.alloc(count)
        return slots

    def _free_private(self, request_id: str) -> None:
        slots = self._private.pop(request_id, None)
        if slots is not None:
            self.token_to_kv_pool_allocator.free(slots)

    def _tree_slots(self, req: Any) -> torch.Tensor:
        """Return the slots of the prefix that the tree holds."""
        root = self.root_node_handle(req.extra_key)
        slots: torch.Tensor = self.tree_core.collect_full_device_indices(req.last_node, root)
        return slots

    def _capture(self, req: Any, chunks: Any) -> None:
        if self._filler is None or not chunks:
            return
        row = self.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
        tokens = list(req.origin_input_ids)
        for chunk in chunks:
            try:
                self._filler.capture(
                    chunk.key,
                    tokens[: chunk.stop],
                    row[chunk.start : chunk.stop].to(torch.int64),
                    start=chunk.start,
                    is_exact=chunk.is_exact,
                    is_first=chunk.is_first,
                )
            except Exception:  # it would end the engine
                logger.exception("a chunk could not be stored")


def make_cache(context: Any) -> Any:
    """Return SGLang's radix cache, with chunk reuse where it is possible.

    Args:
        context: SGLang's `TreeCacheBuildContext`.

    Raises:
        ConfigError: a malformed setting.
    """
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
