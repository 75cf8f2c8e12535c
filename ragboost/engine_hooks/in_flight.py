"""What requests in flight will store, and so what an engine evicts before the next one's turn.

Between dispatch and event: events are exact about the past, and a request sent now is looked up
when those before it have been served. Knows request ids and token counts; does not know documents.
"""

from collections import OrderedDict

_MAX_REQUESTS = 10_000


class InFlight:
    """Requests that are sent and whose blocks no event has confirmed yet, bounded.

    Attributes:
        num_tokens: of all their prompts, what is expected to be stored newly, in whole blocks.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self._requests: OrderedDict[str, _Request] = OrderedDict()

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
        self._requests[request_id] = request = _Request(cached_tokens, block_size or 1)
        self._update(request, prompt_tokens=prompt_tokens)
        if len(self._requests) > _MAX_REQUESTS:
            self.done(next(iter(self._requests)))

    def stored(self, request_id: str, resident_tokens: int) -> None:
        """Events say that so much of a request is cached now."""
        request = self._requests.get(request_id)
        if request is not None:
            request.have_tokens = max(request.have_tokens, resident_tokens)
            self._update(request)
            if not request.missing_tokens:
                self.done(request_id)

    def measured(self, request_id: str, prompt_tokens: int) -> None:
        """A request's answer says how long its prompt was."""
        request = self._requests.get(request_id)
        if request is not None:
            self._update(request, prompt_tokens=prompt_tokens)

    def done(self, request_id: str) -> None:
        """A request stores nothing any more."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self.num_tokens -= request.missing_tokens

    def clear(self) -> None:
        """The engine has been restarted, or is not followed any more."""
        self._requests.clear()
        self.num_tokens = 0

    def kept_share(self, *, resident_tokens: int, capacity_tokens: int | None) -> float:
        """How much of what is cached or will be is still there when all of these are served.

        Args:
            resident_tokens: in the engine's cache now.
            capacity_tokens: the cache's size; None: unbounded.
        """
        total = resident_tokens + self.num_tokens
        if capacity_tokens is None or total <= capacity_tokens:
            return 1.0
        return capacity_tokens / total

    def _update(self, request: "_Request", *, prompt_tokens: int | None = None) -> None:
        if prompt_tokens is not None:
            request.whole_tokens = prompt_tokens // request.block_size * request.block_size
        missing = max(0, request.whole_tokens - request.have_tokens)
        self.num_tokens += missing - request.missing_tokens
        request.missing_tokens = missing


class _Request:
    __slots__ = ("block_size", "have_tokens", "missing_tokens", "whole_tokens")

    def __init__(self, have_tokens: int, block_size: int) -> None:
        self.block_size = block_size
        self.have_tokens = have_tokens
        self.missing_tokens = self.whole_tokens = 0
