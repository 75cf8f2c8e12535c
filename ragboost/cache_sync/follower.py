"""Keep the context indexes of one backend in step with its engine's prefix cache.

The event loop applies pending changes, a few at a time.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import NamedTuple

from ragboost.booster.residency import Residency
from ragboost.booster.tenants import CacheMode, TenantKey, Tenants
from ragboost.cache_sync.event_stream import EventStream, StreamState
from ragboost.cache_sync.in_flight import InFlight
from ragboost.cache_sync.pending_changes import PendingChanges
from ragboost.cache_sync.prefix_mirror import Changes
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.errors import ContextIndexError
from ragboost.index import EvictionForecast, IndexEntry
from ragboost.util.bounded_map import BoundedMap

logger = logging.getLogger(__name__)

# Events follow the response: what no event has confirmed after this long is not cached.
_CONFIRM_S = 1.0
_FORGET_S = 60.0  # after which no event of a prompt comes that is not cached
_PAUSE_S = 0.1  # between steps that nothing but a deadline asks for
_CHANGES_PER_STEP = 32
_MAX_REQUESTS = 10_000  # whose blocks may be cached; of older ones later requests tell
_MAX_PREFIXES = 10_000
_SCALE_WEIGHT = 0.1
_STATES = (StreamState.FALLBACK, StreamState.DEGRADED, StreamState.EXACT)  # the worst one first


class _Ended(NamedTuple):
    """A request that has ended, and when no event of it comes any more."""

    deadline: float
    request_id: str | None
    layout: PromptLayout


class CacheFollower:
    """The context indexes of one backend. Only `on_change` may be called from other threads."""

    def __init__(
        self, name: str, tenants: Tenants, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.streams: dict[str, EventStream] = {}  # the engine's event streams by name
        self.capacity_tokens: int | None = None  # of its prefix cache, if reported
        self.num_responses = 0  # responses so far that reported the length of a prompt
        # Called with the request id, if any, and the layout of what was sent here, for replicas.
        self.on_layout: list[Callable[[str | None, PromptLayout], None]] = []
        self._tenants = tenants
        self._clock = clock
        self._mode = CacheMode()
        self._forecast = EvictionForecast()
        self._in_flight = InFlight()
        self._layouts = BoundedMap[str, PromptLayout](max_entries=_MAX_REQUESTS)  # by request id
        self._replaced: deque[PromptLayout] = deque()  # their ids now name other documents
        self._unconfirmed: deque[_Ended] = deque()  # answered ones whose events may still arrive
        self._ended: deque[_Ended] = deque(maxlen=_MAX_REQUESTS)  # may be forgotten if not cached
        self._failed: deque[tuple[PromptLayout, IndexEntry]] = deque()
        # The request with this text before its documents whose blocks changed last.
        self._by_prompt_prefix = BoundedMap[tuple[TenantKey, str], str](max_entries=_MAX_PREFIXES)
        self._scale: float | None = None  # of layouts with estimated lengths
        self._unknown_tokens = 0  # of layouts with counted lengths
        self._pending = PendingChanges()
        self._is_applying = False

    @property
    def state(self) -> StreamState | None:
        """The worst state of the streams; None without streams."""
        return min(
            (stream.state for stream in self.streams.values()), key=_STATES.index, default=None
        )

    @property
    def num_prompts(self) -> int:
        return len(self._layouts)

    @property
    def is_exact(self) -> bool:
        return self._mode.is_exact

    @property
    def is_idle(self) -> bool:
        return self._pending.is_empty and not self._is_applying

    @property
    def is_settled(self) -> bool:
        """All changes are applied, and no request waits for its events."""
        return self.is_idle and not (self._unconfirmed or self._failed or self._replaced)

    def on_change(self, _stream: str, changes: Changes) -> None:
        """Queue changes, in any thread."""
        self._pending.put(changes)

    def on_sent(
        self, request_id: str | None, layout: PromptLayout, *, cached_tokens: int
    ) -> PromptLayout:
        """Track a request that is being sent; return its layout, corrected by earlier requests.

        An id that a client gives to several requests names the latest one's documents. Documents
        that only an earlier one had are not followed any more, and count as not cached. The id is
        None if its events are not followed; `cached_tokens` are as the index counts.
        """
        if layout.is_measured:
            layout = layout._replace(unknown_tokens=self._unknown_tokens)
        else:
            layout = layout._replace(scale=self._scale or 1.0)
        if request_id is None:
            return layout
        self._keep(request_id, layout)
        for tell in self.on_layout:
            tell(request_id, layout)
        self._in_flight.add(
            request_id,
            prompt_tokens=layout.total,
            cached_tokens=self.predict(layout, cached_tokens),
            block_size=self._block_size,
        )
        self._update_forecast()
        return layout

    def on_response(
        self,
        request_id: str | None,
        layout: PromptLayout,
        *,
        prompt_tokens: int | None,
        has_reused: bool = True,
    ) -> None:
        """Handle the end of a response, with what it reports of its prompt; unless the engine
        `has_reused` chunks, it has computed all documents, whatever was bought."""
        if request_id is not None:
            self._in_flight.answer(request_id, prompt_tokens=prompt_tokens)
            self._update_forecast()
        if prompt_tokens:
            self.num_responses += 1
            corrected = layout.corrected(prompt_tokens)
            self._learn(corrected)
            if request_id is not None and self._layouts.peek(request_id) is layout:
                self._correct(request_id, corrected)
            layout = corrected
        for tell in self.on_layout:
            tell(request_id, layout if has_reused else layout._replace(num_exact=None))
        self._may_forget(request_id, layout)
        if self._mode.is_exact:
            self._await_end(self._unconfirmed, _CONFIRM_S, (request_id, layout))
        elif request_id is not None:
            self._in_flight.remove(request_id)

    async def learn(self, request_id: str | None, layout: PromptLayout) -> None:
        """Handle a prompt that another replica has sent, or got a response to.

        Events then say what of it is cached; without them its exact documents count as cached.
        """
        self._tenants.get(layout.tenant)
        if layout.is_measured or layout.scale != 1.0:  # else it has never seen a response
            self._learn(layout)
        if request_id is not None:
            self._keep(request_id, layout)
            self._may_forget(request_id, layout)
            if tokens := self._resident_tokens(request_id):
                self.on_change("", Changes({request_id: tokens}))
        if not self._mode.is_exact:
            async with self._residency(layout) as residency:
                if residency is not None:
                    end = layout.num_exact
                    residency.computed_elsewhere(layout.documents[:end], layout.tokens[:end])

    def on_failure(
        self, request_id: str | None, layout: PromptLayout, recorded: IndexEntry
    ) -> None:
        self._failed.append((layout, recorded))
        self.wake()
        self._may_forget(request_id, layout)
        if request_id is not None:
            self._in_flight.remove(request_id)

    def predict(self, layout: PromptLayout | None, cached_tokens: int) -> int:
        """Predict the cached tokens that the engine will report; a later turn has no layout."""
        if layout is None:
            return round(cached_tokens * (self._scale or 1.0))
        size = self._block_size or 1
        tokens = layout.cached_prompt(cached_tokens) or self._cached_before(layout)
        return tokens // size * size

    async def run(self) -> None:
        while True:
            await self._pending.wait(self._next_deadline_s())
            await self.step()

    def wake(self) -> None:
        """Have the next step taken at once."""
        self._pending.put(Changes({}))

    def refresh(self) -> None:
        """Look at the streams and the cache's size again, which have been set."""
        if self._current_mode() != self._mode:
            self.wake()

    def _next_deadline_s(self) -> float | None:
        deadlines = [ended[0].deadline for ended in (self._unconfirmed, self._ended) if ended]
        return max(min(deadlines) - self._clock(), _PAUSE_S) if deadlines else None

    def _current_mode(self) -> CacheMode:
        is_exact = self.state is StreamState.EXACT
        return CacheMode(is_exact, self.capacity_tokens, eviction_forecast=self._forecast)

    async def step(self) -> None:
        self._is_applying = True
        changes = self._pending.take()
        if changes.is_cleared:
            await self._clear()
        await self._apply(changes.resident_tokens)
        mode = self._current_mode()
        if mode != self._mode:
            await self._switch(mode)
        await self._drop_failed()
        await self._drop_replaced()
        await self._drop_unconfirmed()
        self._forget_ended()
        self._update_forecast()
        self._is_applying = False

    def _keep(self, request_id: str, layout: PromptLayout) -> None:
        old = self._layouts.peek(request_id)
        if old is not None and old.documents != layout.documents[: len(old.documents)]:
            self._replaced.append(old)
            self.wake()
        self._layouts.put(request_id, layout)

    def _may_forget(self, request_id: str | None, layout: PromptLayout) -> None:
        if request_id is not None:
            self._await_end(self._ended, _FORGET_S, (request_id, layout))

    def _await_end(
        self, ended: deque[_Ended], seconds: float, request: tuple[str | None, PromptLayout]
    ) -> None:
        if not ended:  # else an earlier deadline is waited for
            self.wake()
        ended.append(_Ended(self._clock() + seconds, *request))

    def _forget_ended(self) -> None:
        now = self._clock()
        while self._ended and self._ended[0].deadline <= now:
            _, request_id, layout = self._ended.popleft()
            if request_id is None or self._layouts.peek(request_id) is not layout:
                continue
            if not self._resident_tokens(request_id):
                self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        layout = self._layouts.pop(request_id)
        if layout is None:
            return
        prompt_prefix = layout.tenant, layout.prompt_prefix
        if self._by_prompt_prefix.peek(prompt_prefix) == request_id:
            self._by_prompt_prefix.pop(prompt_prefix)

    def _learn(self, layout: PromptLayout) -> None:
        if layout.is_measured:
            self._unknown_tokens = layout.unknown_tokens
        elif self._scale is None:
            self._scale = layout.scale
        else:
            self._scale += _SCALE_WEIGHT * (layout.scale - self._scale)

    def _correct(self, request_id: str, layout: PromptLayout) -> None:
        self._layouts.put(request_id, layout)
        tokens = self._resident_tokens(request_id)
        if tokens is not None:
            self.on_change("", Changes({request_id: tokens}))

    def _cached_before(self, layout: PromptLayout) -> int:
        request_id = self._by_prompt_prefix.peek((layout.tenant, layout.prompt_prefix))
        resident = None if request_id is None else self._resident_tokens(request_id)
        # Labels begin alike: about half of a frame belongs to the common text.
        return min(resident or 0, layout.start + sum(layout.frames[:1]) // 2)

    async def _switch(self, mode: CacheMode) -> None:
        becomes_exact = mode.is_exact and not self._mode.is_exact
        if mode.is_exact != self._mode.is_exact:
            how = "follows its events" if mode.is_exact else "is a model, its events are incomplete"
            logger.info("backend %s: the context index %s", self.name, how)
        self._mode = self._tenants.modes[self.name] = mode
        for tenant in self._tenants.all():
            async with tenant.lock:
                if (booster := tenant.boosters.get(self.name)) is not None:
                    booster.residency.follow(**mode._asdict())
        if becomes_exact:  # drop what the model assumed
            await self._clear()

    async def _clear(self) -> None:
        for tenant in self._tenants.all():
            async with tenant.lock:
                if (booster := tenant.boosters.get(self.name)) is not None:
                    booster.residency.clear()
        # Caches of other ranks, and blocks stored again in the meantime.
        resident = {name: self._resident_tokens(name) for name in list(self._layouts)}
        for name, layout in self._layouts.items():
            if not resident[name] and name not in self._in_flight:  # else its end is awaited
                self._may_forget(name, layout)
        await self._apply({name: tokens for name, tokens in resident.items() if tokens})

    async def _apply(self, resident_tokens: Mapping[str, int]) -> None:
        # Of two requests with a common prefix the longer one knows more: events report each block
        # that a request loses, but not one that is stored again for another request.
        in_order = sorted(resident_tokens.items(), key=lambda item: item[1])
        for number, (request_id, tokens) in enumerate(in_order, start=1):
            layout = self._layouts.peek(request_id)
            if layout is not None:
                await self._set_resident(layout, tokens)
                if tokens:
                    self._by_prompt_prefix.put((layout.tenant, layout.prompt_prefix), request_id)
            self._in_flight.confirm(request_id, tokens)
            if not tokens:
                self._forget(request_id)
            if number % _CHANGES_PER_STEP == 0:
                await asyncio.sleep(0)

    async def _set_resident(self, layout: PromptLayout, resident_tokens: int) -> None:
        count, partial = layout.resident(resident_tokens, block_size=self._block_size)
        async with self._residency(layout) as residency:
            if residency is None:
                return
            try:
                residency.set_resident(
                    layout.documents, layout.tokens, num_documents=count, partial_tokens=partial
                )
            except ContextIndexError as error:  # an empty index is better than a wrong one
                logger.error("backend %s: clearing a broken index: %s", self.name, error)
                residency.clear()

    async def _drop_failed(self) -> None:
        while self._failed:
            layout, recorded = self._failed.popleft()
            async with self._residency(layout) as residency:
                if residency is not None:
                    residency.failed(recorded)

    async def _drop_replaced(self) -> None:
        while self._replaced:
            layout = self._replaced.popleft()
            async with self._residency(layout) as residency:
                if residency is not None and self._mode.is_exact:
                    residency.set_resident(layout.documents, layout.tokens, num_documents=0)

    async def _drop_unconfirmed(self) -> None:
        now = self._clock()
        while self._unconfirmed and self._unconfirmed[0].deadline <= now:
            _, request_id, layout = self._unconfirmed.popleft()
            if request_id is not None:
                self._in_flight.remove(request_id)
            async with self._residency(layout) as residency:
                if residency is not None:
                    residency.drop_unconfirmed(layout.documents)

    @contextlib.asynccontextmanager
    async def _residency(self, layout: PromptLayout) -> AsyncIterator[Residency | None]:
        """Yield the residency of the layout's tenant under its lock; None if it was dropped."""
        tenant = self._tenants.find(layout.tenant)
        if tenant is None:
            yield None
            return
        async with tenant.lock:
            yield tenant.booster(self.name).residency

    def _update_forecast(self) -> None:
        if self._mode.is_exact:
            mirrors = [stream.mirror for stream in self.streams.values()]
            is_batched = any(mirror.is_tree for mirror in mirrors)
            resident = sum(mirror.num_resident_tokens for mirror in mirrors)
            self._in_flight.capacity_tokens = self.capacity_tokens
            batch = self._in_flight.next_batch(resident_tokens=resident, is_batched=is_batched)
            self._forecast.update(*batch, is_batched=is_batched)

    def _resident_tokens(self, request_id: str) -> int | None:
        for stream in self.streams.values():
            tokens = stream.resident_tokens(request_id)
            if tokens is not None:
                return tokens
        return None

    @property
    def _block_size(self) -> int:
        return max((stream.mirror.block_size for stream in self.streams.values()), default=0)
