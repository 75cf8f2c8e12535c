"""One publisher's numbered event batches, applied in order to its mirror.

Decides what is a gap, a duplicate, a restart, and what to ask of the replay endpoint. Does not know
sockets, threads or clocks: the caller feeds frames and carries out `take_request`.
"""

import enum
import logging
from collections.abc import Callable
from typing import NamedTuple

from ragboost.cache_sync.prefix_mirror import Changes, PrefixMirror
from ragboost.engine_hooks.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    decode_batch,
)
from ragboost.errors import EventStreamError

logger = logging.getLogger(__name__)


class StreamState(enum.StrEnum):
    """How far a stream's mirror can be believed."""

    EXACT = "exact"
    """Every block that the engine holds is known, and no other."""
    DEGRADED = "degraded"
    """What is known is true, but the engine may hold more; or a gap is being filled just now."""
    FALLBACK = "fallback"
    """Nothing is known: not connected, or no frame seen yet."""


class StreamStatus(NamedTuple):
    """A stream's state and counters since the start, for metrics and `/ready`."""

    state: StreamState
    num_batches: int
    num_duplicates: int
    num_gaps: int
    num_restarts: int
    num_replays: int
    num_unreadable: int
    num_stored: int
    num_removed: int
    num_cleared: int
    num_unknown: int
    num_blocks: int
    num_resident_tokens: int


class EventStream:
    """Applies batches exactly once and in order, or says that it could not.

    Every replay begins one batch before the gap. If that batch is not the one we applied, another
    process publishes now, and everything is replayed from the start. Without a replay endpoint a
    gap empties the mirror, because a removal may have been missed.

    Args:
        name: for messages in the log.
        mirror: what the batches are applied to; the stream owns it.
        has_replay: whether `take_request` may ask for a replay.
        on_change: called after each batch that changed what requests have resident, by whatever
            thread feeds the stream.
    """

    def __init__(
        self,
        name: str = "",
        *,
        mirror: PrefixMirror | None = None,
        has_replay: bool = False,
        on_change: Callable[[Changes], None] | None = None,
    ) -> None:
        self.name = name
        self.mirror = PrefixMirror() if mirror is None else mirror
        self.has_replay = has_replay
        self.is_connected = False
        self._on_change = on_change
        self._expected: int | None = None  # sequence number of the next batch
        self._last_digest = 0  # of the payload of batch expected - 1
        self._last_ts = 0.0
        self._replay: _Replay | None = None
        self._request: int | None = None
        self._is_replay_down = False
        self._counts = dict.fromkeys(_COUNTERS, 0)

    @property
    def state(self) -> StreamState:
        """EXACT only while every batch since the engine's cache was empty has been applied."""
        if not self.is_connected or self._expected is None:
            return StreamState.FALLBACK
        if self.mirror.is_partial or (self._replay is not None and self._replay.is_needed):
            return StreamState.DEGRADED
        return StreamState.EXACT

    @property
    def num_applied(self) -> int | None:
        """The sequence number after the last batch applied; None where nothing is known."""
        return self._expected

    @property
    def is_replaying(self) -> bool:
        """Whether live frames should wait for the end of a replay."""
        return self._replay is not None

    @property
    def has_request(self) -> bool:
        """Whether `take_request` has something, so that what still comes of a replay is void."""
        return self._request is not None

    def status(self) -> StreamStatus:
        """State and counters now."""
        return StreamStatus(
            state=self.state,
            num_unknown=self.mirror.num_unknown,
            num_blocks=len(self.mirror),
            num_resident_tokens=self.mirror.num_resident_tokens,
            **self._counts,
        )

    def resident_tokens(self, request_id: str) -> int | None:
        """Leading tokens of a request that are cached now; None where that is not known."""
        if self.state is StreamState.FALLBACK:
            return None
        return self.mirror.resident_tokens(request_id)

    def take_request(self) -> int | None:
        """The sequence number to replay from, once; None where nothing is to be asked."""
        request, self._request = self._request, None
        return request

    def connected(self) -> None:
        """The transport has reached a publisher, the same one or another."""
        self.is_connected = True
        if self.has_replay:
            self._ask(is_full=self._is_replay_down, is_needed=True)

    def disconnected(self) -> None:
        """The transport has lost the publisher. With a replay endpoint the mirror is kept, unread,
        until the replay after `connected` tells whether it still holds."""
        self.is_connected = False
        self._replay = self._request = None
        if not self.has_replay:
            self._reset(is_partial=True)
            self._expected = None

    def probe(self) -> None:
        """Look for batches lost at the end of the stream, or for a replay endpoint that is back."""
        if self.is_connected and self.has_replay and self._replay is None:
            self._ask(is_full=self._is_replay_down, is_needed=False)

    def receive(self, seq: int, payload: bytes) -> None:
        """Take a live frame. While a replay runs it is dropped, and found missing afterwards."""
        if self._replay is not None:
            return
        can_ask = self.has_replay and not self._is_replay_down
        if self._expected is None and seq and can_ask:
            self._ask(is_full=True, is_needed=True)
        elif self._expected is None:
            self._reset(is_partial=seq != 0)
            self._apply(seq, payload)
        elif seq == self._expected:
            self._apply(seq, payload)
        elif seq < self._expected and self._is_stale(payload):
            self._counts["num_duplicates"] += 1
        elif can_ask:
            self._counts["num_gaps"] += seq > self._expected
            self._ask(is_full=False, is_needed=True)
        else:
            self._begin_again(seq, payload)

    def replay(self, seq: int, payload: bytes) -> None:
        """Take a frame of the replay that was asked for."""
        replay = self._replay
        if replay is None or replay.has_hole:
            return
        if replay.is_full:
            self._reset(is_partial=seq != 0)
            replay.is_full, replay.is_verified, replay.has_progress = False, True, True
            self._apply(seq, payload)
        elif not replay.is_verified:
            if (seq + 1, hash(payload)) == (self._expected, self._last_digest):
                replay.is_verified = True
            else:
                self._restart()
        elif seq == self._expected:
            replay.is_needed = True  # there was something that we did not know
            replay.has_progress = True
            self._apply(seq, payload)
        elif self._expected is None or seq > self._expected:
            # A ROUTER drops what a slow reader does not fetch: ask again for the rest.
            replay.has_hole = True

    def replay_ended(self) -> None:
        """The replay endpoint has sent its end marker."""
        replay = self._replay
        if replay is None:
            return
        self._replay = None
        self._is_replay_down = False
        if replay.is_full:  # nothing was ever published, so nothing is cached
            self._reset(is_partial=False)
            self._expected = 0
        elif not replay.is_verified:
            self._restart()
        elif replay.has_hole and replay.has_progress:
            self._ask(is_full=False, is_needed=True)
        elif replay.has_hole:
            self._replay = replay
            self.replay_failed()

    def replay_failed(self) -> None:
        """The replay endpoint did not answer to the end; until `probe` go on without it."""
        replay, self._replay = self._replay, None
        self._is_replay_down = True
        if replay is not None and replay.is_needed:
            logger.warning("KV event stream %s: no replay, its mirror starts anew", self.name)
            self._reset(is_partial=True)
            self._expected = None

    def _ask(self, *, is_full: bool, is_needed: bool) -> None:
        is_full = is_full or self._expected is None
        start = 0 if is_full or self._expected is None else max(self._expected - 1, 0)
        is_verified = self._expected == 0  # nothing applied yet, nothing to compare with
        self._replay = _Replay(is_full=is_full, is_needed=is_needed, is_verified=is_verified)
        self._request = start
        self._counts["num_replays"] += 1

    def _restart(self) -> None:
        """Another process publishes now, or the buffer no longer reaches back to what we know."""
        self._counts["num_restarts"] += 1
        logger.info("KV event stream %s: its publisher started anew, replaying all", self.name)
        self._reset(is_partial=True)
        self._expected = None
        self._ask(is_full=True, is_needed=True)

    def _begin_again(self, seq: int, payload: bytes) -> None:
        is_gap = self._expected is not None and seq > self._expected
        self._counts["num_gaps" if is_gap else "num_restarts"] += 1
        logger.info("KV event stream %s: batch %d came, not %s", self.name, seq, self._expected)
        self._reset(is_partial=seq != 0)
        self._apply(seq, payload)

    def _apply(self, seq: int, payload: bytes) -> None:
        self._expected = seq + 1
        self._last_digest = hash(payload)
        try:
            batch = decode_batch(payload)
        except EventStreamError as error:
            self._counts["num_unreadable"] += 1
            logger.warning("KV event stream %s: batch %d: %s", self.name, seq, error)
            self._reset(is_partial=True)
            return
        self._counts["num_batches"] += 1
        for event in batch.events:
            self._counts[_COUNTER_OF[type(event)]] += 1
        self._last_ts = batch.ts
        was_partial = self.mirror.is_partial
        changes = self.mirror.apply(batch)
        if self.mirror.is_partial and not was_partial:
            logger.warning(
                "KV event stream %s: batch %d does not fit what came before%s",
                self.name,
                seq,
                f", unknown events {batch.unknown}" if batch.unknown else "",
            )
        self._tell(changes)

    def _is_stale(self, payload: bytes) -> bool:
        """Whether a frame with an old number is an old frame, not a new publisher's."""
        try:
            batch: EventBatch = decode_batch(payload)
        except EventStreamError:
            return False
        return batch.ts <= self._last_ts

    def _reset(self, *, is_partial: bool) -> None:
        had_any = bool(len(self.mirror))
        self.mirror.clear(is_partial=is_partial)
        if had_any:
            self._tell(Changes({}, is_cleared=True))

    def _tell(self, changes: Changes) -> None:
        if self._on_change is not None and (changes.is_cleared or changes.resident_tokens):
            self._on_change(changes)


_COUNTERS = (
    "num_batches",
    "num_duplicates",
    "num_gaps",
    "num_restarts",
    "num_replays",
    "num_unreadable",
    "num_stored",
    "num_removed",
    "num_cleared",
)
_COUNTER_OF = {
    BlockStored: "num_stored",
    BlockRemoved: "num_removed",
    AllBlocksCleared: "num_cleared",
}


class _Replay:
    """A replay in flight."""

    def __init__(self, *, is_full: bool, is_needed: bool, is_verified: bool) -> None:
        self.is_full = is_full  # from the very first batch, and none has come yet
        self.is_needed = is_needed  # something is known to be missing
        self.is_verified = is_verified  # the publisher is the one whose batches we applied
        self.has_hole = False
        self.has_progress = False
