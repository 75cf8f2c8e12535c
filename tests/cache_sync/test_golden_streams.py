"""The engines' own frames over real sockets: lost, late, out of order, too many, from the start."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ragboost.cache_events import (
    AllBlocksCleared,
    EventBatch,
    decode_batch,
    encode_batch,
)
from ragboost.cache_sync.discovery import EventSource
from ragboost.cache_sync.event_stream import StreamState
from ragboost.cache_sync.prefix_mirror import PrefixMirror
from ragboost.cache_sync.subscriber import Subscriber
from tests.cache_sync.test_subscriber import Frames
from tests.eventually import eventually
from tests.fakes.publisher import Publisher
from tests.test_cache_events import frames

Deliver = Callable[[int, bytes], Frames]


def lossy() -> Deliver:
    dice = random.Random(1)
    return lambda seq, payload: [] if dice.random() < 0.1 else [(seq, payload)]


def late() -> Deliver:
    def deliver(seq: int, payload: bytes) -> Frames:
        time.sleep(0.03)
        return [(seq, payload)]

    return deliver


def shuffled() -> Deliver:
    held: Frames = []
    dice = random.Random(2)

    def deliver(seq: int, payload: bytes) -> Frames:
        held.append((seq, payload))
        if len(held) < 3:
            return []
        out = [*held, dice.choice(held)]
        held.clear()
        dice.shuffle(out)
        return out

    return deliver


CLEARED = encode_batch(EventBatch(ts=2.0**31, events=(AllBlocksCleared(),)))
RESIDENT = {"vllm-0.32.0": 128, "sglang-0.5.23": 144}


@pytest.mark.parametrize("name", list(RESIDENT))
@pytest.mark.parametrize("trouble", [lossy, late, shuffled, None])
def test_golden_frames_survive_losses_delays_and_disorder_on_a_real_socket(
    tmp_path: Path, name: str, trouble: Callable[[], Deliver] | None
) -> None:
    endpoint, replay = f"ipc://{tmp_path}/pub", f"ipc://{tmp_path}/replay"
    deliver = trouble() if trouble else None
    publisher = Publisher(endpoint, replay_endpoint=replay, deliver=deliver)
    source = EventSource("a", endpoint, replay_endpoint=replay)
    rounds = 10 if trouble else 1000  # without other trouble: a flood of more than 10,000 events
    with Subscriber([source], probe_interval_s=0.1) as subscriber:
        stream = subscriber.streams["a"]
        for _ in range(rounds):
            publisher.publish_payload(CLEARED)
            for payload in frames(name):
                publisher.publish_payload(payload)
        total = rounds * (len(frames(name)) + 1)
        eventually(lambda: stream.next_seq == total and stream.state is StreamState.EXACT)
        stream.mirror.check_integrity()
        assert stream.mirror.num_resident_tokens == RESIDENT[name]
        publisher.publish_payload(CLEARED)
        eventually(lambda: stream.next_seq == total + 1 and stream.state is StreamState.EXACT)
        assert (len(stream.mirror), stream.state) == (0, StreamState.EXACT)
    publisher.close()


@pytest.mark.parametrize("name", list(RESIDENT))
def test_golden_frames_are_known_again_when_either_side_restarts(tmp_path: Path, name: str) -> None:
    endpoint, replay = f"ipc://{tmp_path}/pub", f"ipc://{tmp_path}/replay"
    source = EventSource("a", endpoint, replay_endpoint=replay)
    publisher = Publisher(endpoint, replay_endpoint=replay)
    for payload in frames(name):
        publisher.publish_payload(payload)
    for _ in range(2):  # a listener that was started again
        with Subscriber([source], probe_interval_s=0.1) as subscriber:
            stream = subscriber.streams["a"]
            eventually(
                lambda: (
                    stream.next_seq == len(frames(name))  # noqa: B023
                    and stream.state is StreamState.EXACT  # noqa: B023
                )
            )
            assert stream.mirror.num_resident_tokens == RESIDENT[name]
    with Subscriber([source], probe_interval_s=0.1) as subscriber:
        stream = subscriber.streams["a"]
        eventually(lambda: stream.next_seq == len(frames(name)))
        publisher.close()  # the engine is killed
        eventually(lambda: stream.state is StreamState.FALLBACK)
        publisher = Publisher(endpoint, replay_endpoint=replay)
        first = frames(name)[0]
        publisher.publish_payload(first)
        eventually(lambda: stream.next_seq == 1 and stream.state is StreamState.EXACT)
        alone = PrefixMirror()
        alone.clear(is_partial=False)
        alone.apply(decode_batch(first))
        assert stream.mirror.num_resident_tokens == alone.num_resident_tokens
    publisher.close()
