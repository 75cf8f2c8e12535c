"""Hand changes of a prefix cache from any thread to the event loop, merged until it takes them."""

import asyncio
import contextlib
import threading

from ragboost.cache_sync.prefix_mirror import Changes


class PendingChanges:
    """Changes that no one has taken yet. Only `put` may be called from other threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the next three
        self._changes = Changes({})
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_woken = False
        self._wake = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        with self._lock:
            return not self._changes.resident_tokens and not self._changes.is_cleared

    def put(self, changes: Changes) -> None:
        """Add changes and wake who waits; later ones of a request replace earlier ones."""
        with self._lock:
            resident = {} if changes.is_cleared else self._changes.resident_tokens
            resident.update(changes.resident_tokens)
            is_cleared = changes.is_cleared or self._changes.is_cleared
            self._changes = Changes(resident, is_cleared)
            loop, is_woken, self._is_woken = self._loop, self._is_woken, True
        if loop is not None and not is_woken:
            loop.call_soon_threadsafe(self._wake.set)

    def take(self) -> Changes:
        with self._lock:
            self._is_woken = False
            changes, self._changes = self._changes, Changes({})
        return changes

    async def wait(self, seconds: float | None) -> None:
        """Wait for changes, so long at most."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            if self._is_woken:
                return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)
        self._wake.clear()
