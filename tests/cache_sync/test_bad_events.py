"""Malformed events over real sockets: counted, dropped, and followed by good ones."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ragboost.cache_events import MAX_BATCH_BYTES, EventBatch
from ragboost.cache_sync.discovery import EventSource
from ragboost.cache_sync.event_stream import EventStream, StreamState
from ragboost.cache_sync.prefix_mirror import Changes, PrefixMirror
from ragboost.cache_sync.subscriber import Subscriber
from tests.eventually import eventually
from tests.fakes.publisher import Publisher

encode = msgspec.msgpack.encode


def batch(*events: Any) -> bytes:
    return encode([1.0, events])


def stored(**changes: Any) -> dict[str, Any]:
    event = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None}
    return {**event, "token_ids": [1, 2], "block_size": 2, "medium": None, **changes}


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\x00"


def stored_with_extra(raw: bytes) -> bytes:
    """A batch whose event has raw msgpack as the extra keys of its only block."""
    event = stored(extra_keys=[[msgspec.Raw(raw)]])
    return encode([1.0, [event]])


BAD: dict[str, bytes] = {
    "empty": b"",
    "no msgpack": b"\xc1",
    "a number": encode(7),
    "too short": encode([1.0]),
    "four billion parts": b"\xdd\xff\xff\xff\xff",
    "four billion events": b"\x92\x01\xdd\xff\xff\xff\xff",
    "a nested batch": nested(100_000),
    "a nested time": b"\x92" + nested(100_000) + b"\x90",
    "a nested event": b"\x92\x01\x91" + nested(100_000),
    "a nested unknown field": b"\x92\x01\x91\x82\xa4type\xabBlockStored\xa1x" + nested(100_000),
    "nested extra keys": stored_with_extra(nested(100_000)),
    "a map as a key": stored_with_extra(b"\x81\x80\x01"),
    "an invalid timestamp": stored_with_extra(b"\xc7\x00\xff"),
    "invalid UTF-8": batch(stored(session_id=msgspec.Raw(b"\xa2\xff\xff"))),
    "a token of 2^63": batch(stored(token_ids=[2**63, 1])),
    "a pair with a token of 2^63": batch(stored(token_ids=[[2**63, 1], [1, 1]])),
    "an empty pair": batch(stored(token_ids=[[], [1, 1]])),
    "a text as a token": batch(stored(token_ids=["a", "b"])),
    "a fraction as a token": batch(stored(token_ids=[1.5, 1])),
    "a hash of a megabyte": batch(stored(block_hashes=[b"x" * 1024 * 1024])),
    "a hash that is a list": batch(stored(block_hashes=[[1]])),
    "no hashes at all": batch({"type": "BlockStored"}),
    "a size of 2^63": batch(stored(block_size=2**63)),
    "a negative size": batch(stored(block_size=-2)),
    "a size of nothing": batch(stored(block_size=0)),
    "a medium of a megabyte": batch(stored(medium="x" * 1024 * 1024)),
    "a removal of a number": batch({"type": "BlockRemoved", "block_hashes": 7}),
    "an event that is a number": batch(7),
    "an event of no type": batch({"kind": "BlockStored"}),
    "an empty array": batch([]),
    "an array of no type": batch([7]),
    "a time that is a text": encode(["now", []]),
    "a time that is infinite": encode([float("inf"), ["x"]]),
    "a rank that is a text": encode([1.0, [], "zero"]),
}


class Rig:
    """A publisher, and a subscriber to it that forgives quickly."""

    def __init__(self, folder: Path, *, has_replay: bool) -> None:
        self.source = EventSource(
            "bad/0",
            f"ipc://{folder}/pub",
            replay_endpoint=f"ipc://{folder}/replay" if has_replay else None,
        )
        self.publisher = Publisher(
            self.source.endpoint, replay_endpoint=self.source.replay_endpoint
        )
        self.changes: list[Changes] = []
        self.num_good = 0

    @contextmanager
    def listening(self, *, pause_s: float = 0.05) -> Iterator[EventStream]:
        with Subscriber(
            [self.source],
            on_change=lambda _, changes: self.changes.append(changes),
            pause_s=pause_s,
            probe_interval_s=0.1,
            replay_timeout_s=0.5,
        ) as subscriber:
            stream = subscriber.streams["bad/0"]
            eventually(lambda: stream.is_connected and self.publisher.is_subscribed)
            yield stream

    def check_follows(self, stream: EventStream) -> None:
        """One of some new good events changes the mirror; they are lost while a subscriber pauses,
        and may come late."""
        new: list[str] = []
        eventually(lambda: self._is_followed(stream, new))

    def _is_followed(self, stream: EventStream, new: list[str]) -> bool:
        self.num_good += 1
        name, token = f"good-{self.num_good}", 1_000_000 + self.num_good
        event = stored(block_hashes=[token], token_ids=[token, token], session_id=name)
        events = [{"type": "AllBlocksCleared"}, event]
        self.publisher.publish_payload(encode([float(token), events]))
        eventually(lambda: self.publisher.num_published >= 0)
        new.append(name)
        try:
            eventually(lambda: 2 in map(stream.resident_tokens, new), within_s=0.5)
        except AssertionError:
            return False
        if stream.resident_tokens(name):  # the last: nothing changes the mirror meanwhile
            stream.mirror.check_integrity()
        return True


@pytest.fixture(params=[True, False], ids=["replay", "no replay"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, has_replay=request.param)
    yield made
    made.publisher.close()


def test_a_good_event_is_applied_after_every_kind_of_bad_one(rig: Rig) -> None:
    with rig.listening() as stream:
        for payload in BAD.values():
            rig.publisher.publish_payload(payload)
            rig.check_follows(stream)
            eventually(lambda: stream.state is StreamState.EXACT)  # the good event clears the cache
    assert stream.counts["num_unreadable"] + stream.mirror.num_unknown >= len(BAD) - 1


def test_a_bad_event_empties_the_mirror_and_the_index_learns_of_it(rig: Rig) -> None:
    with rig.listening() as stream:
        rig.check_follows(stream)
        rig.changes.clear()
        rig.publisher.publish_payload(BAD["a token of 2^63"])
        eventually(lambda: any(changes.is_cleared for changes in rig.changes))
        eventually(lambda: stream.state is StreamState.DEGRADED)
        assert stream.mirror.num_resident_tokens == 0


def test_a_fault_of_the_mirror_is_survived(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = PrefixMirror.apply

    def faulty(mirror: PrefixMirror, events: EventBatch) -> Changes:
        changes = apply(mirror, events)
        if any(getattr(event, "session_id", None) == "fault" for event in events.events):
            raise KeyError("a fault that nobody foresaw")
        return changes

    monkeypatch.setattr(PrefixMirror, "apply", faulty)
    with rig.listening() as stream:
        rig.publisher.publish_payload(batch(stored(session_id="fault")))
        eventually(lambda: stream.counts["num_faults"] == 1)
        rig.check_follows(stream)


@pytest.mark.parametrize("number", [2**64 - 1, 2**64 - 5, 2**63, 2**63 - 1])
def test_good_events_are_applied_after_one_with_an_absurd_number(rig: Rig, number: int) -> None:
    rig.publisher.deliver = lambda seq, payload: [(number if seq == 1 else seq, payload)]
    with rig.listening() as stream:
        for _ in range(3):
            rig.check_follows(stream)


@pytest.mark.parametrize("parts", [[b"only"], [b"kv", b"short", b""], [b"kv", bytes(9), b"", b""]])
def test_messages_without_a_number_are_dropped(tmp_path: Path, parts: list[bytes]) -> None:
    endpoint = f"ipc://{tmp_path}/pub"
    with (
        zmq.Context() as context,
        context.socket(zmq.XPUB) as publisher,
        Subscriber([EventSource("a", endpoint)]) as subscriber,
    ):
        publisher.bind(endpoint)
        publisher.recv()  # the subscription
        publisher.send_multipart(parts)
        publisher.send_multipart([b"", bytes(8), batch(stored(session_id="good"))])
        eventually(lambda: subscriber.streams["a"].resident_tokens("good"), equals=2)


def test_a_frame_that_is_too_large_is_never_read(rig: Rig) -> None:
    rig.publisher.deliver = lambda seq, payload: [
        (seq, bytes(MAX_BATCH_BYTES + 1) if payload == b"huge" else payload)
    ]
    with rig.listening() as stream:
        rig.check_follows(stream)
        rig.publisher.publish_payload(b"huge")
        rig.check_follows(stream)
        assert stream.counts["num_batches"]


def test_a_flood_of_bad_frames_is_left_after_a_few_and_hardly_logged(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscriber leaves for `pause_s` after some bad frames, however many there are."""
    num_bad = 20_000
    polled: list[int] = []
    poll = zmq.Poller.poll

    def counted(poller: zmq.Poller, timeout: int) -> Any:
        polled.append(len(poller.sockets))
        return poll(poller, timeout)

    monkeypatch.setattr(zmq.Poller, "poll", counted)
    with caplog.at_level(logging.DEBUG, "ragboost"), rig.listening(pause_s=3600.0) as stream:
        for _ in range(num_bad):
            rig.publisher.publish_payload(BAD["no msgpack"])
        eventually(lambda: not rig.publisher.is_subscribed)
        eventually(lambda: rig.publisher.num_published, equals=num_bad)
        assert stream.state is StreamState.FALLBACK
        assert stream.is_flooding
        assert 0 < stream.counts["num_unreadable"] < 100
    assert 0 not in polled, "a poll without sockets returns at once: a busy loop"
    assert 0 < len(caplog.records) < 20


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(2**63), max_value=2**64 - 1),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "GPU", 1, 2]),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
near_events = st.builds(
    lambda changes: stored(**changes),
    st.dictionaries(
        st.sampled_from([*stored(), "extra_keys", "session_id", "group_idx", "lora_id"]),
        values,
        max_size=4,
    ),
)
payloads = st.one_of(
    st.binary(max_size=64),
    values.map(encode),
    st.lists(near_events | values, max_size=3).map(lambda events: encode([1.0, events])),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.lists(payloads, min_size=1, max_size=20))
def test_random_frames_never_end_the_following(
    fuzzed: Callable[[list[bytes]], None], frames: list[bytes]
) -> None:
    fuzzed(frames)


@pytest.fixture
def fuzzed(tmp_path: Path) -> Iterator[Callable[[list[bytes]], None]]:
    """Publish frames to one subscriber that lives through all examples, then a good event."""
    rig = Rig(tmp_path, has_replay=False)
    with rig.listening(pause_s=0.0) as stream:

        def publish(frames: list[bytes]) -> None:
            for frame in frames:
                rig.publisher.publish_payload(frame)
            rig.check_follows(stream)
            eventually(lambda: stream.state is StreamState.EXACT)

        yield publish
    assert stream.counts["num_faults"] == 0
    rig.publisher.close()
