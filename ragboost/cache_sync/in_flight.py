"""Forecast what requests in flight will store, and so what an engine evicts for them.

Events are exact about the past, but a request sent now is looked up only after those before it.
"""

import math
from collections import OrderedDict
from typing import NamedTuple

_MAX_REQUESTS = 10_000


class NextBatch(NamedTuple):
    """The state of the cache in which a request sent now will be computed."""

    retained_share: float  # share of the present and expected tokens that will still be cached
    number: int  # of the batch that will compute it, if it has room
    free_tokens: float  # new tokens that this batch has room for


class InFlight:
    """Requests that were sent and whose blocks no event has confirmed yet, bounded.

    They are computed in the order in which they were sent, in numbered batches: one is running, and
    the others wait behind it. The first event or response of a request of a batch means that this
    batch is complete and the next one has started, with every waiting request that fits into it.
    """

    def __init__(self) -> None:
        self.num_tokens = 0  # new tokens that all of them are expected to store, in whole blocks
        # Of the engine's cache, which a batch must fit into; None: unbounded.
        self.capacity_tokens: int | None = None
        self._requests: OrderedDict[str, _Request] = OrderedDict()
        self._running = 1  # number of the batch that is being computed, or will be next
        self._last = 1  # number of the last batch with waiting requests
        self._batches: dict[int, _Batch] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def add(
        self, request_id: str, *, prompt_tokens: int, cached_tokens: int, block_size: int
    ) -> None:
        """Add a request that was sent; a repeated id replaces the earlier request."""
        self.remove(request_id)
        number = self._next_number
        if max(0, prompt_tokens - cached_tokens) >= self._free_tokens(self._batches.get(number)):
            number += 1
        if self._last not in self._batches:
            self._running = number
        self._last = number
        self._requests[request_id] = request = _Request(number, cached_tokens, block_size or 1)
        self._batches.setdefault(number, _Batch()).add(request)
        self._update(request, prompt_tokens=prompt_tokens)
        if len(self._requests) > _MAX_REQUESTS:
            self.remove(next(iter(self._requests)))

    def confirm(self, request_id: str, resident_tokens: int) -> None:
        request = self._requests.get(request_id)
        if request is not None:
            self._complete_batch(request)
            request.cached_tokens = max(request.cached_tokens, resident_tokens)
            self._update(request)
            if not request.missing_tokens:
                self.remove(request_id)

    def answer(self, request_id: str, *, prompt_tokens: int | None) -> None:
        request = self._requests.get(request_id)
        if request is not None:
            self._complete_batch(request)
            if prompt_tokens:
                self._update(request, prompt_tokens=prompt_tokens)

    def remove(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        if request is not None:
            self.num_tokens -= request.missing_tokens
            batch = self._batches.get(request.batch)
            if batch is not None:
                batch.remove(request)
                if not batch.num_requests:
                    del self._batches[request.batch]

    def next_batch(self, *, resident_tokens: int, is_batched: bool) -> NextBatch:
        """Forecast the cache as a request sent now will find it.

        With `is_batched`, the requests of a batch are stored together when it is complete.
        """
        number = self._next_number
        batch = self._batches.get(number)
        total = stored = resident_tokens + self.num_tokens
        if is_batched:
            stored -= batch.missing_tokens if batch is not None else 0
            running = self._batches.get(self._running)
            if running is not None:  # room for a partial block
                stored += running.num_requests * running.block_size
        retained_share = 1.0
        if self.capacity_tokens is not None and stored > self.capacity_tokens:
            retained_share -= (stored - self.capacity_tokens) / total
        return NextBatch(retained_share, number, self._free_tokens(batch))

    @property
    def _next_number(self) -> int:
        if self._last not in self._batches:  # an idle engine starts it at once
            return max(self._running, self._last + 2)  # a number that no request was given
        return self._last + (self._last == self._running)

    def _free_tokens(self, batch: "_Batch | None") -> float:
        if batch is None or self.capacity_tokens is None:
            return math.inf
        # Each request takes a partial block, and one that the engine reserves.
        taken = batch.missing_tokens + 2 * (batch.num_requests + 1) * batch.block_size
        return self.capacity_tokens - taken - batch.shared_tokens

    def _complete_batch(self, request: "_Request") -> None:
        if request.batch >= self._running:
            for number in [n for n in self._batches if n <= request.batch]:
                del self._batches[number]
            self._running = request.batch + 1
            self._last = max(self._last, self._running)

    def _update(self, request: "_Request", *, prompt_tokens: int | None = None) -> None:
        if prompt_tokens is not None:
            request.prompt_tokens = prompt_tokens // request.block_size * request.block_size
        missing = max(0, request.prompt_tokens - request.cached_tokens)
        self.num_tokens += missing - request.missing_tokens
        batch = self._batches.get(request.batch)
        if batch is not None:
            batch.missing_tokens += missing - request.missing_tokens
        request.missing_tokens = missing


class _Request:
    __slots__ = ("batch", "block_size", "cached_tokens", "missing_tokens", "prompt_tokens")

    def __init__(self, batch: int, cached_tokens: int, block_size: int) -> None:
        self.batch = batch
        self.block_size = block_size
        self.cached_tokens = cached_tokens
        self.missing_tokens = self.prompt_tokens = 0  # in whole blocks


class _Batch:
    """Requests computed together; what they find cached stays, most of it shared by all."""

    __slots__ = ("block_size", "missing_tokens", "num_requests", "shared_tokens")

    def __init__(self) -> None:
        self.num_requests = self.missing_tokens = self.shared_tokens = 0
        self.block_size = 1

    def add(self, request: _Request) -> None:
        self.num_requests += 1
        self.block_size = request.block_size
        self.shared_tokens = max(self.shared_tokens, request.cached_tokens)

    def remove(self, request: _Request) -> None:
        self.num_requests -= 1
        self.missing_tokens -= request.missing_tokens
