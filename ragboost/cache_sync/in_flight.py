"""What requests in flight will store, and so what an engine evicts before the next one's turn.

Between dispatch and event: events are exact about the past, and a request sent now is looked up
when those before it have been served. Knows request ids and token counts; does not know documents.
"""

import math
from collections import OrderedDict
from typing import NamedTuple

_MAX_REQUESTS = 10_000


class NextTurn(NamedTuple):
    """What a request sent now has to expect.

    Attributes:
        kept_share: of what is cached or will be, what is still there when its turn comes.
        batch: number of the batch that it will be in, if there is room for it; else the next one.
        room_tokens: new tokens that there is room for.
    """

    kept_share: float
    batch: int
    room_tokens: float


class InFlight:
    """Requests that are sent and whose blocks no event has confirmed yet, bounded.

    They are computed in the order in which they were sent, in numbered batches: one runs, those
    behind it wait. The first sign of a request of a batch, its event or its answer, says that the
    batch is over and that the next one has begun, with everything that waited and found room.

    Attributes:
        num_tokens: of all their prompts, what is expected to be stored newly, in whole blocks.
        capacity_tokens: of the engine's cache, which a batch has to fit into; None: unbounded.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self.capacity_tokens: int | None = None
        self._requests: OrderedDict[str, _Request] = OrderedDict()
        self._running = 1  # number of the batch that is computed, or comes next
        self._open = 1  # the last one that requests wait for
        self._waiting: dict[int, _Batch] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def sent(
        self, request_id: str, *, prompt_tokens: int, cached_tokens: int, block_size: int
    ) -> None:
        """A request is on its way; an id that is sent again names the latest request.

        Args:
            request_id: as its engine will call it.
            prompt_tokens: of the whole prompt.
            cached_tokens: of them, what is expected to be cached when its turn comes.
            block_size: only whole blocks are stored; 0: not known.
        """
        self.done(request_id)
        batch = self._next_batch
        if max(0, prompt_tokens - cached_tokens) >= self._room_tokens(self._waiting.get(batch)):
            batch += 1
        if self._open not in self._waiting:
            self._running = batch
        self._open = batch
        self._requests[request_id] = request = _Request(batch, cached_tokens, block_size or 1)
        self._waiting.setdefault(batch, _Batch()).add(request)
        self._update(request, prompt_tokens=prompt_tokens)
        if len(self._requests) > _MAX_REQUESTS:
            self.done(next(iter(self._requests)))

    def stored(self, request_id: str, resident_tokens: int) -> None:
        """Events say that so much of a request is cached now."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request)
            request.have_tokens = max(request.have_tokens, resident_tokens)
            self._update(request)
            if not request.missing_tokens:
                self.done(request_id)

    def answered(self, request_id: str, *, prompt_tokens: int | None) -> None:
        """A request has been computed; its answer may say how long its prompt was."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request)
            if prompt_tokens:
                self._update(request, prompt_tokens=prompt_tokens)

    def done(self, request_id: str) -> None:
        """A request stores nothing any more."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self.num_tokens -= request.missing_tokens
            batch = self._waiting.get(request.batch)
            if batch is not None:
                batch.remove(request)
                if not batch.num_requests:
                    del self._waiting[request.batch]

    def clear(self) -> None:
        """The engine has been restarted, or is not followed any more."""
        self._requests.clear()
        self._waiting.clear()
        self._open = self._running = self._open + 1
        self.num_tokens = 0

    def next_turn(self, *, resident_tokens: int, is_batched: bool) -> NextTurn:
        """What a request sent now has to expect.

        Args:
            resident_tokens: in the engine's cache now.
            is_batched: requests of one batch are stored together when it is over.
        """
        number = self._next_batch
        batch = self._waiting.get(number)
        total = stored = resident_tokens + self.num_tokens
        if is_batched:
            stored -= batch.missing_tokens if batch is not None else 0
            ahead = self._waiting.get(self._running)
            if ahead is not None:  # room for a block that is not full
                stored += ahead.num_requests * ahead.block_size
        kept_share = 1.0
        if self.capacity_tokens is not None and stored > self.capacity_tokens:
            kept_share -= (stored - self.capacity_tokens) / total
        return NextTurn(kept_share, number, self._room_tokens(batch))

    @property
    def _next_batch(self) -> int:
        if self._open not in self._waiting:  # an idle engine begins with it at once
            return max(self._running, self._open + 2)  # nothing has been told this number
        return self._open + (self._open == self._running)

    def _room_tokens(self, batch: "_Batch | None") -> float:
        if batch is None or self.capacity_tokens is None:
            return math.inf
        # Of each request the block that is not full, and one that the engine keeps for it.
        taken = batch.missing_tokens + 2 * (batch.num_requests + 1) * batch.block_size
        return self.capacity_tokens - taken - batch.shared_tokens

    def _end(self, request: "_Request") -> None:
        """The batch of a request is over, and with it those before."""
        if request.batch >= self._running:
            for number in [each for each in self._waiting if each <= request.batch]:
                del self._waiting[number]
            self._running = request.batch + 1
            self._open = max(self._open, self._running)

    def _update(self, request: "_Request", *, prompt_tokens: int | None = None) -> None:
        if prompt_tokens is not None:
            request.whole_tokens = prompt_tokens // request.block_size * request.block_size
        missing = max(0, request.whole_tokens - request.have_tokens)
        self.num_tokens += missing - request.missing_tokens
        batch = self._waiting.get(request.batch)
        if batch is not None:
            batch.missing_tokens += missing - request.missing_tokens
        request.missing_tokens = missing


class _Request:
    __slots__ = ("batch", "block_size", "have_tokens", "missing_tokens", "whole_tokens")

    def __init__(self, batch: int, have_tokens: int, block_size: int) -> None:
        self.batch = batch
        self.block_size = block_size
        self.have_tokens = have_tokens
        self.missing_tokens = self.whole_tokens = 0


class _Batch:
    """Requests that are computed together; what they find cached is kept, most of it in common."""

    __slots__ = ("block_size", "missing_tokens", "num_requests", "shared_tokens")

    def __init__(self) -> None:
        self.num_requests = self.missing_tokens = self.shared_tokens = 0
        self.block_size = 1

    def add(self, request: _Request) -> None:
        self.num_requests += 1
        self.block_size = request.block_size
        self.shared_tokens = max(self.shared_tokens, request.have_tokens)

    def remove(self, request: _Request) -> None:
        self.num_requests -= 1
        self.missing_tokens -= request.missing_tokens
