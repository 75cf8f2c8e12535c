"""Apply the numbered event batches of one publisher to a mirror, exactly once and in order.

Detects gaps, duplicates and restarts. The caller feeds frames and carries out `take_request`.
"""

import enum
import logging
from collections import Counter
from collections.abc import Callable

from ragboost.cache_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    decode_batch,
)
from ragboost.cache_sync.prefix_mirror import Changes, PrefixMirror
from ragboost.errors import EventStreamError

logger = logging.getLogger(__name__)

_COUNTER_OF_EVENT = {
    BlockStored: "num_stored",
    BlockRemoved: "num_removed",
    AllBlocksCleared: "num_cleared",
}


_REJECTIONS = ("num_unreadable", "num_faults", "num_disproved", "num_restarts", "num_gaps")


class StreamState(enum.StrEnum):
    """How reliable a stream's mirror is."""

    EXACT = "exact"
    """The mirror equals the engine's cache."""
    DEGRADED = "degraded"
    """The mirror is right but may be incomplete, or a gap is being replayed."""
    FALLBACK = "fallback"
    """The mirror is unusable: not connected, or no frame received yet."""


class EventStream:
    """The stream of one publisher and the mirror that it updates.

    Every replay starts one batch before the gap. If that batch differs from the one applied,
    another process is publishing now, and the whole stream is replayed. Without a replay endpoint a
    gap clears the mirror, because a removal may have been missed.

    `on_change` is called after a batch that changed resident tokens and by `notify_state`,
    `on_batch` before each batch is applied, both in the thread that feeds the stream.
    """

    def __init__(
        self,
        name: str = "",
        *,
        has_replay: bool = False,
        on_change: Callable[[Changes], None] | None = None,
        on_batch: Callable[[EventBatch], None] | None = None,
    ) -> None:
        self.name = name
        self.mirror = PrefixMirror()  # of the publisher's cache
        self.has_replay = has_replay
        self.is_connected = False  # a publisher was found
        # The publisher is left alone for a while, after many malformed frames.
        self.is_flooding = False
        # Frames so far that were of no use or cost what was known: malformed ones, and wrong
        # numbers. Every replay brings duplicates; without one they mean a wrong number.
        self.num_rejected = 0
        self._on_change = on_change
        self._on_batch = on_batch
        self._next_seq: int | None = None  # None: unknown
        self._last_digest = 0  # of the payload of batch _next_seq - 1
        self._last_ts = 0.0
        self._replay: _Replay | None = None
        self._request: int | None = None
        self._is_replay_down = False
        self._noted = (StreamState.FALLBACK, 0)
        # Since the start, of events and incidents; `num_disproved`: gaps without a missing batch.
        self.counts: Counter[str] = Counter()

    @property
    def state(self) -> StreamState:
        """EXACT only if every batch since the engine's cache was empty has been applied."""
        if not self.is_connected or self._next_seq is None:
            return StreamState.FALLBACK
        if self.mirror.is_partial or (self._replay is not None and self._replay.is_needed):
            return StreamState.DEGRADED
        return StreamState.EXACT

    @property
    def next_seq(self) -> int | None:
        return self._next_seq

    @property
    def is_replaying(self) -> bool:
        return self._replay is not None

    @property
    def has_request(self) -> bool:
        """`take_request` returns a number; further frames of a running replay are ignored."""
        return self._request is not None

    def resident_tokens(self, request_id: str) -> int | None:
        """Return the leading tokens of a request that are cached; None if unknown."""
        if self.state is StreamState.FALLBACK:
            return None
        return self.mirror.resident_tokens(request_id)

    def take_request(self) -> int | None:
        """Return the sequence number to replay from, once; None if no replay is needed."""
        request, self._request = self._request, None
        return request

    def connected(self) -> None:
        """Handle a connection to a publisher, the same one as before or another."""
        self.is_connected = True
        if self.has_replay:
            self._request_replay(is_full=self._is_replay_down, is_needed=True)

    def disconnected(self) -> None:
        """Handle the loss of the connection.

        With a replay endpoint the mirror is kept, but not read, until the replay after `connected`
        shows whether it is still right.
        """
        self.is_connected = False
        self._replay = self._request = None
        if not self.has_replay:
            self._reset(is_partial=True)
            self._next_seq = None

    def close(self) -> None:
        """Free the mirror: nothing will be fed any more."""
        self.disconnected()
        self.mirror.clear(is_partial=True)

    def probe(self) -> None:
        """Request a replay to find batches lost at the end, or a replay endpoint that is back."""
        if self.is_connected and self.has_replay and self._replay is None:
            self._request_replay(is_full=self._is_replay_down, is_needed=False)

    def receive(self, seq: int, payload: bytes) -> None:
        """Handle a live frame; one that arrives during a replay is dropped and replayed later."""
        if self._replay is not None:
            return
        can_replay = self.has_replay and not self._is_replay_down
        if self._next_seq is None and seq and can_replay:
            self._request_replay(is_full=True, is_needed=True)
        elif self._next_seq is None:
            self._reset(is_partial=seq != 0)
            self._apply(seq, payload)
        elif seq == self._next_seq:
            self._apply(seq, payload)
        elif seq < self._next_seq and self._is_old(payload):
            self.counts["num_duplicates"] += 1
            self.num_rejected += not self.has_replay
        elif can_replay:
            self.counts["num_gaps"] += seq > self._next_seq
            self._request_replay(is_full=False, is_needed=True, is_gap=True)
        else:
            name = "num_gaps" if seq > self._next_seq else "num_restarts"
            self._reset(is_partial=seq != 0)
            self.note(name, f"got batch {seq}, expected {self._next_seq}", level=logging.INFO)
            self._apply(seq, payload)

    def replay(self, seq: int, payload: bytes) -> None:
        replay = self._replay
        if replay is None:
            return
        if replay.is_full:
            self._reset(is_partial=seq != 0)
            replay.is_full, replay.is_verified, replay.has_progress = False, True, True
            self._apply(seq, payload)
        elif not replay.is_verified:
            if (seq + 1, hash(payload)) == (self._next_seq, self._last_digest):
                replay.is_verified = True
            else:
                self._restart()
        elif seq == self._next_seq:
            replay.is_needed = True  # a batch was missing
            replay.has_progress = True
            self._apply(seq, payload)
        elif self._next_seq is None or seq > self._next_seq:
            self.replay_failed()

    def replay_ended(self) -> None:
        replay = self._replay
        if replay is None:
            return
        self._replay = None
        self._is_replay_down = False
        if replay.is_full:  # nothing was ever published, so nothing is cached
            self._reset(is_partial=False)
            self._next_seq = 0
        elif not replay.is_verified:
            self._restart()
        elif replay.is_gap and not replay.has_progress:
            self.note("num_disproved", "no batch was missing", level=logging.DEBUG)

    def replay_failed(self) -> None:
        """Handle a replay with a gap or without an end.

        A ROUTER drops what its reader is too slow for: the rest of a replay that brought batches is
        requested. After one that brought none the stream goes on without replays until `probe`
        succeeds.
        """
        replay, self._replay = self._replay, None
        if replay is not None and replay.has_progress:
            self._request_replay(is_full=False, is_needed=True)
            return
        self._is_replay_down = True
        if replay is not None and replay.is_needed:
            self.note("num_failed_replays", "replay failed, clearing its mirror")
            self._reset(is_partial=True)
            self._next_seq = None

    def _request_replay(self, *, is_full: bool, is_needed: bool, is_gap: bool = False) -> None:
        is_full = is_full or self._next_seq is None
        start = 0 if is_full or self._next_seq is None else max(self._next_seq - 1, 0)
        is_verified = self._next_seq == 0  # no batch applied yet that could be compared
        self._replay = _Replay(
            is_full=is_full, is_needed=is_needed, is_verified=is_verified, is_gap=is_gap
        )
        self._request = start
        self.counts["num_replays"] += 1

    def _restart(self) -> None:
        """Start over: another process publishes now, or its buffer no longer reaches back to us."""
        found = "its publisher restarted, replaying everything"
        self.note("num_restarts", found, level=logging.INFO)
        self._reset(is_partial=True)
        self._next_seq = None
        self._request_replay(is_full=True, is_needed=True)

    def faulted(self, error: Exception) -> None:
        """Handle an error that nobody foresaw: drop the frame and what the mirror holds."""
        self._replay = self._request = None
        self.note("num_faults", "dropped a batch after an error", error=error)
        self._reset(is_partial=True)

    def _apply(self, seq: int, payload: bytes) -> None:
        self._next_seq = seq + 1
        self._last_digest = hash(payload)
        was_partial = self.mirror.is_partial
        try:
            batch = decode_batch(payload)
            if self._on_batch is not None:
                self._on_batch(batch)
            changes = self.mirror.apply(batch)
        except (EventStreamError, RecursionError) as error:  # extra keys may be nested
            self.note("num_unreadable", f"dropped batch {seq} and cleared the mirror: {error}")
            self._reset(is_partial=True)
            return
        self.counts["num_batches"] += 1
        for event in batch.events:
            self.counts[_COUNTER_OF_EVENT[type(event)]] += 1
        self._last_ts = batch.ts
        if self.mirror.is_partial and not was_partial:
            unknown = f", unknown events {batch.unknown[:8]}" if batch.unknown else ""
            self.note("num_contradictions", f"batch {seq} contradicts earlier ones{unknown}")
        self._notify(changes)

    def note(
        self,
        name: str,
        message: str,
        *,
        level: int = logging.WARNING,
        error: Exception | None = None,
    ) -> None:
        """Count an incident; log the first one, the second, the fourth, and so on."""
        self.counts[name] += 1
        self.num_rejected += name in _REJECTIONS
        count = self.counts[name]
        if count & (count - 1) == 0:
            text = "KV event stream %s: %s (%d so far)"
            logger.log(level, text, self.name, message, count, exc_info=error)

    def notify_state(self, *, is_idle: bool) -> None:
        """Report if the state or the number of cached tokens is another than at the last call;
        in a pause also what was left to settle."""
        if is_idle:
            self._notify(self.mirror.settle())
        noted, self._noted = self._noted, (self.state, self.mirror.num_resident_tokens)
        if self._noted != noted and self._on_change is not None:
            self._on_change(Changes({}))

    def _is_old(self, payload: bytes) -> bool:
        """Tell an old frame from the frame of a new publisher with the same number."""
        try:
            return decode_batch(payload).ts <= self._last_ts
        except EventStreamError:
            return False

    def _reset(self, *, is_partial: bool) -> None:
        had_any = bool(len(self.mirror))
        self.mirror.clear(is_partial=is_partial)
        if had_any:
            self._notify(Changes({}, is_cleared=True))

    def _notify(self, changes: Changes) -> None:
        if self._on_change is not None and (changes.is_cleared or changes.resident_tokens):
            self._on_change(changes)


class _Replay:
    def __init__(self, *, is_full: bool, is_needed: bool, is_verified: bool, is_gap: bool) -> None:
        self.is_full = is_full  # from the first batch on, none of which has arrived yet
        self.is_needed = is_needed  # a batch is known to be missing
        self.is_verified = is_verified  # the publisher is the one whose batches were applied
        self.is_gap = is_gap  # requested because a frame's number was not the next one
        self.has_progress = False
