"""See that an engine's cache events arrive: send it a request, and wait for its event."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from ragboost.cache_events import BlockStored, EventBatch
from ragboost.cache_sync.discovery import EventSource
from ragboost.cache_sync.subscriber import Subscriber
from ragboost.requests.headers import new_request_id

_POLL_S = 0.02
_REQUESTS = 3  # a publisher drops what it sends before it has noticed its subscriber


class EventArrival(NamedTuple):
    is_connected: bool  # a publisher was found
    has_stored: bool = False  # blocks were stored after the request
    has_id: bool = False  # and their event has the request's id


async def probe_events(
    sources: Sequence[EventSource], send: Callable[[str], Awaitable[None]], *, timeout_s: float
) -> EventArrival:
    """Subscribe to an engine's sources, send a request, and wait for its event.

    `send` sends a new prompt of at least a block with this session id, and awaits the response.
    """
    stored: set[str | None] = set()  # session ids, added by the subscriber's thread

    def on_batch(batch: EventBatch) -> None:
        events = (event for event in batch.events if isinstance(event, BlockStored))
        stored.update(event.session_id for event in events)

    with Subscriber(sources, on_batch=on_batch) as subscriber:
        streams = subscriber.streams.values()
        if not await _met(lambda: any(stream.is_connected for stream in streams), timeout_s):
            return EventArrival(is_connected=False)
        for _ in range(_REQUESTS):
            request_id = new_request_id()
            stored.clear()
            await send(request_id)
            if await _met(lambda name=request_id: name in stored, timeout_s):  # type: ignore[misc]
                return EventArrival(is_connected=True, has_stored=True, has_id=True)
            if stored:
                break
        return EventArrival(is_connected=True, has_stored=bool(stored))


async def _met(condition: Callable[[], bool], timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - streams set no asyncio.Event
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return False
    return True
