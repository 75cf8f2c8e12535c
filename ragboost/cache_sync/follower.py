"""Keep the context indexes of one backend in step with its engine.

Changes come from any thread and are merged until the event loop applies them, a few at a time.
Knows request ids, tenants and documents. Does not know sockets, routes or where streams come from.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

from ragboost.booster.residency import Residency
from ragboost.cache_sync.documents import DocumentTracker, ResidentContext
from ragboost.cache_sync.in_flight import InFlight
from ragboost.cache_sync.prefix_mirror import Changes
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.cache_sync.stream import EventStream, StreamState
from ragboost.errors import ContextIndexError
from ragboost.index import EvictionForecast, IndexEntry
from ragboost.rewriting.tenants import CacheMode, Tenants

logger = logging.getLogger(__name__)

# An answer's events follow it: what no event has confirmed after this long is not cached.
_CONFIRM_S = 1.0
_LOOK_S = 0.1
_PER_TURN = 32
_MIN_CUT_TOKENS = 16
_MAX_REQUESTS = 100_000
_SCALE_WEIGHT = 0.1


class _Due(NamedTuple):
    at: float
    front: PromptLayout
    request_id: str | None


class CacheFollower:
    """See the module. Everything but `on_change` belongs to the event loop.

    Attributes:
        name: of the backend.
        streams: the engine's streams by name.
        capacity_tokens: of its prefix cache, where it says so.
    """

    def __init__(self, name: str, tenants: Tenants) -> None:
        self.name = name
        self.streams: dict[str, EventStream] = {}
        self.capacity_tokens: int | None = None
        self._scale: float | None = None  # for documents whose lengths are estimates
        self._unknown_tokens = 0  # for those that were counted
        self._tenants = tenants
        self._mode = CacheMode()
        self._pressure = EvictionForecast()
        self._in_flight = InFlight()
        self._tracker = DocumentTracker(max_requests=_MAX_REQUESTS)
        self._fronts: OrderedDict[str, PromptLayout] = OrderedDict()
        self._left: deque[PromptLayout] = deque()  # of ids that now name other documents
        self._answered: deque[_Due] = deque()
        self._failed: deque[tuple[PromptLayout, IndexEntry]] = deque()
        self._guard = threading.Lock()
        self._pending = Changes({})
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._is_woken = False
        self._is_applying = False

    @property
    def state(self) -> StreamState | None:
        """The worst of the streams' states; None without streams."""
        states = [stream.state for stream in self.streams.values()]
        order = (StreamState.FALLBACK, StreamState.DEGRADED, StreamState.EXACT)
        return min(states, key=order.index, default=None)

    @property
    def is_exact(self) -> bool:
        """Whether the indexes hold what events say."""
        return self._mode.is_exact

    @property
    def is_settled(self) -> bool:
        """Everything that came in is applied, and nothing is expected any more."""
        with self._guard:
            is_idle = not self._pending.resident_tokens and not self._pending.is_cleared
        return is_idle and not (self._is_applying or self._answered or self._failed or self._left)

    def on_change(self, _stream: str, changes: Changes) -> None:
        """Take in changes, in any thread; later ones of a request replace earlier ones."""
        with self._guard:
            resident = {} if changes.is_cleared else self._pending.resident_tokens
            resident.update(changes.resident_tokens)
            is_cleared = changes.is_cleared or self._pending.is_cleared
            self._pending = Changes(resident, is_cleared)
            loop, is_woken, self._is_woken = self._loop, self._is_woken, True
        if loop is not None and not is_woken:
            loop.call_soon_threadsafe(self._wake.set)

    def sent(
        self, request_id: str | None, front: PromptLayout, *, cached_tokens: int
    ) -> PromptLayout:
        """A request is sent on, under an id that the engine puts into its events if there are any.

        An id that a caller gives to several requests names the latest one's documents. What only an
        earlier one had is no longer followed, and counts as not cached.

        Args:
            request_id: the id; None: the engine tells nothing.
            front: its documents.
            cached_tokens: of them, what is expected to be cached, in the index's tokens.
        """
        if front.is_measured:
            front = front._replace(unknown_tokens=self._unknown_tokens)
        else:
            front = front._replace(scale=self._scale or 1.0)
        if request_id is None:
            return front
        old = self._fronts.pop(request_id, None)
        if old is not None and old.documents != front.documents[: len(old.documents)]:
            self._left.append(old)
        self._track(request_id, front)
        self._in_flight.sent(
            request_id,
            prompt_tokens=front.total,
            cached_tokens=self.predict(front, cached_tokens),
            block_size=self._block_size(),
        )
        self._press()
        return front

    def answered(
        self,
        request_id: str | None,
        front: PromptLayout,
        *,
        prompt_tokens: int | None,
        ends: tuple[int, ...] | None = None,
    ) -> None:
        """A request's answer is over.

        Args:
            request_id: the id that it was sent with; None: it was not followed.
            front: what `sent` returned.
            prompt_tokens: of the prompt, as reported; None: unknown.
            ends: where its documents end in the prompt, if the answer told its token ids.
        """
        if request_id is not None:
            self._in_flight.answered(request_id, prompt_tokens=prompt_tokens)
            self._press()
        if prompt_tokens:
            front = self._learn(front, prompt_tokens, ends=ends, request_id=request_id)
        if self._mode.is_exact:
            self._answered.append(_Due(time.monotonic() + _CONFIRM_S, front, request_id))
        elif request_id is not None:
            self._in_flight.done(request_id)

    def failed(self, request_id: str | None, front: PromptLayout, recorded: IndexEntry) -> None:
        """A request was not computed."""
        self._failed.append((front, recorded))
        if request_id is not None:
            self._in_flight.done(request_id)

    def _learn(
        self,
        front: PromptLayout,
        prompt_tokens: int,
        *,
        ends: tuple[int, ...] | None,
        request_id: str | None,
    ) -> PromptLayout:
        """Take in how long a prompt really was; the front with its documents in their places."""
        told = front.corrected(prompt_tokens)._replace(ends_told=ends)
        if told.is_measured:
            self._unknown_tokens = told.unknown_tokens
        elif self._scale is None:
            self._scale = told.scale
        else:
            self._scale += _SCALE_WEIGHT * (told.scale - self._scale)
        if request_id is not None and self._fronts.get(request_id) is front:
            self._track(request_id, told)
            tokens = self._resident_tokens(request_id)
            if tokens is not None:
                self.on_change("", Changes({request_id: tokens}))
        return told

    def predict(self, front: PromptLayout | None, cached_tokens: int) -> int:
        """The engine's cached tokens for a request, where the index expects this.

        Args:
            front: its documents; None in a later turn.
            cached_tokens: of them, in the index's tokens.
        """
        if front is None:
            return round(cached_tokens * (self._scale or 1.0))
        size = self._block_size() or 1
        return front.cached_prompt(cached_tokens) // size * size

    async def run(self) -> None:
        """Apply what comes in until cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _LOOK_S)
            self._wake.clear()
            await self.step()

    async def step(self) -> None:
        """Apply what has come in so far."""
        self._is_applying = True
        changes = self._take()
        if changes.is_cleared:
            await self._clear()
        await self._apply(changes.resident_tokens)
        mode = CacheMode(
            self.state is StreamState.EXACT, self.capacity_tokens, pressure=self._pressure
        )
        if mode != self._mode:
            await self._follow(mode)
        await self._drop()
        self._press()
        self._is_applying = False

    async def _follow(self, mode: CacheMode) -> None:
        """Go over to events, to the model, or to another capacity."""
        becomes_exact = mode.is_exact and not self._mode.is_exact
        if mode.is_exact != self._mode.is_exact:
            logger.info("backend %s: its cache is %s", self.name, _how(mode))
        self._mode = self._tenants.modes[self.name] = mode
        for tenant in self._tenants.all():
            async with tenant.lock:
                booster = tenant.booster(self.name)
                booster.residency.follow(
                    is_exact=mode.is_exact,
                    capacity_tokens=mode.capacity_tokens,
                    eviction_forecast=mode.pressure,
                )
        if becomes_exact:  # what the model believed goes
            await self._clear()

    async def _clear(self) -> None:
        for tenant in self._tenants.all():
            async with tenant.lock:
                tenant.booster(self.name).residency.clear()
        # Other ranks, or what was stored again since.
        now = {name: self._resident_tokens(name) for name in list(self._fronts)}
        await self._apply({name: tokens for name, tokens in now.items() if tokens})

    async def _apply(self, resident_tokens: Mapping[str, int]) -> None:
        # Of two requests with a common prefix the longer one knows more: a request is told of each
        # block that it loses, but not of one that comes back for another request.
        in_order = sorted(resident_tokens.items(), key=lambda item: item[1])
        size = self._block_size()
        for number, (request_id, tokens) in enumerate(in_order, start=1):
            front = self._fronts.get(request_id)
            slack = front.slack(tokens) if front is not None else 0
            context = self._tracker.resident(request_id, tokens, block_size=size + slack)
            if front is not None and context is not None:
                await self._set(front, context)
            self._in_flight.stored(request_id, tokens)
            if not tokens:
                self._fronts.pop(request_id, None)
            if number % _PER_TURN == 0:
                await asyncio.sleep(0)

    async def _set(self, front: PromptLayout, context: ResidentContext) -> None:
        count = context.num_resident
        cut = 0
        if count < len(front.documents):
            told = context.resident_tokens + front.start
            cut = front.cached_documents(told) - sum(front.tokens[:count])
            cut = cut if cut > _MIN_CUT_TOKENS else 0
        async with self._residency(front) as residency:
            if residency is None:
                return
            try:
                residency.set_resident(
                    front.documents, front.tokens, num_documents=count, partial_tokens=cut
                )
            except ContextIndexError as error:  # better no index than a wrong one
                logger.error("backend %s: emptying a broken index: %s", self.name, error)
                residency.clear()

    async def _drop(self) -> None:
        """Take back what failed, was expected for too long, or is not followed any more."""
        while self._failed:
            front, recorded = self._failed.popleft()
            async with self._residency(front) as residency:
                if residency is not None:
                    residency.failed(recorded)
        while self._left:
            front = self._left.popleft()
            async with self._residency(front) as residency:
                if residency is not None and self._mode.is_exact:
                    residency.set_resident(front.documents, front.tokens, num_documents=0)
        now = time.monotonic()
        while self._answered and self._answered[0].at <= now:
            _, front, answered = self._answered.popleft()
            if answered is not None:
                self._in_flight.done(answered)
            async with self._residency(front) as residency:
                if residency is not None:
                    residency.drop_unconfirmed(front.documents)

    @contextlib.asynccontextmanager
    async def _residency(self, front: PromptLayout) -> AsyncIterator[Residency | None]:
        """Of a front's tenant, which is locked meanwhile; None: the tenant is forgotten."""
        tenant = self._tenants.find(front.tenant)
        if tenant is None:
            yield None
            return
        async with tenant.lock:
            yield tenant.booster(self.name).residency

    def _press(self) -> None:
        """Say what of the cache will be there when a request that is sent now gets its turn."""
        if self._mode.is_exact:
            mirrors = [stream.mirror for stream in self.streams.values()]
            is_batched = any(mirror.is_tree for mirror in mirrors)
            resident = sum(mirror.num_resident_tokens for mirror in mirrors)
            self._in_flight.capacity_tokens = self.capacity_tokens
            turn = self._in_flight.next_turn(resident_tokens=resident, is_batched=is_batched)
            self._pressure.update(*turn, is_batched=is_batched)

    def _take(self) -> Changes:
        with self._guard:
            self._is_woken = False
            changes, self._pending = self._pending, Changes({})
        return changes

    def _track(self, request_id: str, front: PromptLayout) -> None:
        self._fronts[request_id] = front
        self._fronts.move_to_end(request_id)
        if len(self._fronts) > _MAX_REQUESTS:
            self._fronts.popitem(last=False)
        self._tracker.sent(
            request_id,
            front.documents,
            ends=front.ends,
            tokens_before=front.start,
        )

    def _resident_tokens(self, request_id: str) -> int | None:
        for stream in self.streams.values():
            tokens = stream.resident_tokens(request_id)
            if tokens is not None:
                return tokens
        return None

    def _block_size(self) -> int:
        return max((stream.mirror.block_size for stream in self.streams.values()), default=0)


def _how(mode: CacheMode) -> str:
    return "followed exactly" if mode.is_exact else "modelled, its events are not complete"
