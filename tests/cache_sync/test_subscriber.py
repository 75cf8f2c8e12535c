"""Streams over real sockets: losses, delays, restarts, floods; the mirror soon equals again."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from ragboost.cache_sync import subscriber
from ragboost.cache_sync.discovery import EventSource
from ragboost.cache_sync.event_stream import EventStream, StreamState
from ragboost.cache_sync.prefix_mirror import Changes
from ragboost.cache_sync.subscriber import Subscriber
from ragboost.errors import ConfigError
from tests.cache_sync.toy import ToyCache
from tests.eventually import eventually
from tests.fakes.publisher import Publisher

DOCUMENTS = [[1000 * i + j for j in range(8 + i % 5)] for i in range(12)]
Frames = list[tuple[int, bytes]]


class Rig:
    """A toy cache, its publisher, and a subscriber to it."""

    def __init__(self, folder: Path, *, has_replay: bool = True, **habits: object) -> None:
        self.endpoint = f"ipc://{folder}/pub"
        self.replay_endpoint = f"ipc://{folder}/replay" if has_replay else None
        self.habits = habits
        self.cache = ToyCache(num_blocks=40)
        self.changes: list[Changes] = []
        self.random = random.Random(7)
        self.prompts: dict[str, list[int]] = {}
        self.publisher = self.make_publisher()

    def make_publisher(self) -> Publisher:
        return Publisher(self.endpoint, replay_endpoint=self.replay_endpoint, **self.habits)  # type: ignore[arg-type]

    @contextmanager
    def listening(self, **options: float) -> Iterator[EventStream]:
        source = EventSource(
            "toy/0", self.endpoint, replay_endpoint=self.replay_endpoint, topic="kv@"
        )
        options = {"probe_interval_s": 0.2, "replay_timeout_s": 0.5} | options
        with Subscriber(
            [source],
            on_change=lambda _, changes: self.changes.append(changes),
            **options,  # type: ignore[arg-type]
        ) as subscriber:
            stream = subscriber.streams["toy/0"]
            eventually(lambda: stream.is_connected)
            eventually(lambda: self.publisher.is_subscribed)  # behind the handshake
            yield stream

    def serve(self, requests: int) -> None:
        for _ in range(requests):
            name = f"r{len(self.prompts)}"
            picks = self.random.sample(range(len(DOCUMENTS)), 3)
            tokens = [token for i in picks for token in DOCUMENTS[i]]
            self.prompts[name] = tokens
            self.cache.run(tokens, name, again=self.random.randrange(2))
            self.publisher.publish(self.cache.take())

    def restart(self) -> None:
        self.publisher.close()
        self.cache.blocks.clear()
        self.publisher = self.make_publisher()

    def is_equal(self, stream: EventStream) -> bool:
        """Compare the mirror's blocks with the cache's, by hash and copies."""
        try:
            return stream.mirror.copies() == Counter(self.cache.blocks.values())
        except RuntimeError:  # the subscriber is changing it
            return False

    def check(self, stream: EventStream) -> None:
        eventually(lambda: stream.state is StreamState.EXACT and self.is_equal(stream))
        stream.mirror.check_integrity()
        for name, tokens in self.prompts.items():
            told = stream.resident_tokens(name) or 0
            assert told <= self.cache.cached_tokens(tokens)
            assert stream.mirror.match_tokens(tokens) == self.cache.cached_tokens(tokens)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(**habits: object) -> Rig:
        made.append(Rig(tmp_path, **habits))
        return made[-1]

    yield make
    for each in made:
        each.publisher.close()


@pytest.mark.parametrize("has_topic", [True, False])
def test_a_late_listener_replays_all_and_then_follows_live(
    rig: Callable[..., Rig], has_topic: bool
) -> None:
    toy = rig(has_topic=has_topic)
    toy.serve(30)
    with toy.listening() as stream:
        toy.check(stream)
        toy.serve(30)
        toy.check(stream)
        assert stream.counts["num_batches"] == toy.publisher.sent
    assert stream.state is StreamState.FALLBACK
    assert stream.resident_tokens(next(iter(toy.prompts))) is None


def test_a_publisher_that_has_said_nothing_yet_is_known_to_be_empty(
    rig: Callable[..., Rig],
) -> None:
    toy = rig()
    with toy.listening() as stream:
        eventually(lambda: stream.state is StreamState.EXACT)
        assert len(stream.mirror) == 0


def test_without_replay_the_first_batch_decides_between_exact_and_degraded(
    rig: Callable[..., Rig],
) -> None:
    toy = rig(has_replay=False)
    toy.serve(3)
    eventually(lambda: toy.publisher.num_published > 0)
    with toy.listening() as stream:
        assert stream.state is StreamState.FALLBACK
        toy.serve(5)
        eventually(lambda: stream.state is StreamState.DEGRADED)
        toy.cache.clear()
        toy.serve(5)
        toy.check(stream)  # an emptied cache is known again


def test_a_tenth_of_the_frames_lost_is_replayed(rig: Callable[..., Rig]) -> None:
    lose = random.Random(3)
    toy = rig(deliver=lambda seq, payload: [] if lose.random() < 0.1 else [(seq, payload)])
    with toy.listening() as stream:
        for _ in range(10):
            toy.serve(20)
            toy.check(stream)
        assert stream.counts["num_gaps"] > 0


def test_losses_at_the_end_are_found_without_another_frame(rig: Callable[..., Rig]) -> None:
    toy = rig(deliver=lambda seq, payload: [] if seq >= 10 else [(seq, payload)])
    with toy.listening() as stream:
        toy.serve(15)
        toy.check(stream)


def test_reordered_and_repeated_frames_are_applied_once(rig: Callable[..., Rig]) -> None:
    held: Frames = []
    shuffle = random.Random(5)

    def deliver(seq: int, payload: bytes) -> Frames:
        held.append((seq, payload))
        if len(held) < 4:
            return []
        out = [*held, shuffle.choice(held)]
        held.clear()
        shuffle.shuffle(out)
        return out

    toy = rig(deliver=deliver)
    with toy.listening() as stream:
        toy.serve(100)
        toy.check(stream)
        assert stream.counts["num_restarts"] == 0
        assert stream.counts["num_batches"] == toy.publisher.sent


def test_a_gap_without_replay_empties_the_mirror_until_the_cache_is_cleared(
    rig: Callable[..., Rig],
) -> None:
    toy = rig(has_replay=False, deliver=lambda seq, p: [] if seq == 20 else [(seq, p)])
    with toy.listening() as stream:
        toy.serve(15)
        toy.check(stream)
        toy.serve(15)
        eventually(lambda: stream.counts["num_gaps"] == 1)
        eventually(lambda: stream.next_seq == toy.publisher.num_published)
        assert stream.state is StreamState.DEGRADED
        assert any(changes.is_cleared for changes in toy.changes)
        held = set(toy.cache.blocks.values())
        assert held.issuperset(stream.mirror.copies())
        toy.cache.clear()
        toy.serve(3)
        toy.check(stream)


def test_a_restarted_engine_is_followed_whether_it_published_less_or_more(
    rig: Callable[..., Rig],
) -> None:
    toy = rig()
    with toy.listening() as stream:
        for requests in (20, 5, 0, 40):
            toy.serve(requests)
            toy.check(stream)
            toy.restart()
            toy.serve(requests // 2)
            toy.check(stream)
        assert stream.counts["num_restarts"] >= 4


def test_a_restart_without_replay_is_exact_from_its_first_batch(rig: Callable[..., Rig]) -> None:
    toy = rig(has_replay=False)
    with toy.listening() as stream:
        toy.serve(10)
        toy.check(stream)
        toy.publisher.close()
        eventually(lambda: stream.state is StreamState.FALLBACK)
        toy.cache.blocks.clear()
        toy.publisher = toy.make_publisher()
        eventually(lambda: toy.publisher.is_subscribed)
        toy.serve(5)
        toy.check(stream)


def test_a_dead_engine_is_a_fallback_and_comes_back_with_what_it_kept(
    rig: Callable[..., Rig],
) -> None:
    toy = rig()
    with toy.listening() as stream:
        toy.serve(10)
        toy.check(stream)
        toy.restart()
        toy.publisher.close()
        eventually(lambda: stream.state is StreamState.FALLBACK)
        toy.publisher = toy.make_publisher()
        toy.cache.blocks.clear()
        toy.serve(4)
        toy.check(stream)


def test_a_buffer_that_no_longer_reaches_back_leaves_the_stream_degraded(
    rig: Callable[..., Rig],
) -> None:
    toy = rig(buffer_steps=5)
    toy.serve(20)
    eventually(lambda: toy.publisher.num_published >= 0)
    with toy.listening() as stream:
        eventually(
            lambda: stream.state is StreamState.DEGRADED and stream.counts["num_batches"] >= 5
        )
        toy.cache.clear()
        toy.serve(3)
        toy.check(stream)


def test_a_mute_replay_endpoint_does_not_stop_the_live_stream(rig: Callable[..., Rig]) -> None:
    toy = rig(is_mute=True)
    toy.serve(5)
    eventually(lambda: toy.publisher.num_published >= 0)
    with toy.listening(replay_timeout_s=0.2, probe_interval_s=0.5) as stream:
        eventually(lambda: stream.counts["num_replays"] >= 1 and not stream.is_replaying)
        toy.serve(5)
        eventually(lambda: stream.counts["num_batches"] > 0)
        assert stream.state is StreamState.DEGRADED
        toy.publisher.is_mute = False
        toy.check(stream)  # a probe finds the endpoint answering again


def test_ten_thousand_batches_in_a_row_end_exact(rig: Callable[..., Rig]) -> None:
    toy = rig()
    with toy.listening() as stream:
        toy.serve(10_000)
        toy.check(stream)


def test_a_replay_longer_than_the_router_holds_is_asked_for_again(
    rig: Callable[..., Rig],
) -> None:
    toy = rig()
    toy.serve(6_000)
    eventually(lambda: toy.publisher.num_published >= 0)
    with toy.listening() as stream:
        toy.check(stream)


def test_a_replay_whose_end_is_dropped_is_continued(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]  # only the test lets a replay time out, however slowly it goes on
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: None)
    monkeypatch.setattr(subscriber, "time", clock)
    toy = rig(max_replayed=10)
    toy.serve(35)
    eventually(lambda: toy.publisher.num_published >= 0)
    with toy.listening(replay_timeout_s=5.0, probe_interval_s=3600.0) as stream:
        for num_batches in (10, 19, 28):  # each begins with the last batch of the one before
            eventually(lambda: stream.counts["num_batches"], equals=num_batches)
            now[0] += 6.0
        toy.check(stream)
        assert stream.counts["num_failed_replays"] == 0
        assert stream.counts["num_batches"] == toy.publisher.sent


def test_a_stopped_listener_that_starts_again_knows_the_same(rig: Callable[..., Rig]) -> None:
    toy = rig()
    for _ in range(3):
        toy.serve(10)
        with toy.listening() as stream:
            toy.check(stream)


def test_each_rank_has_a_stream_of_its_own(tmp_path: Path) -> None:
    caches = [ToyCache(num_blocks=40) for _ in range(2)]
    publishers = [Publisher(f"ipc://{tmp_path}/{i}") for i in range(2)]
    sources = [EventSource(f"toy/{i}", f"ipc://{tmp_path}/{i}") for i in range(2)]
    with Subscriber(sources) as subscriber:
        eventually(lambda: all(stream.is_connected for stream in subscriber.streams.values()))
        eventually(lambda: all(each.is_subscribed for each in publishers))
        for i, cache in enumerate(caches):
            cache.run(DOCUMENTS[i] * 2, f"r{i}")
            publishers[i].publish(cache.take())
        first, second = subscriber.streams["toy/0"], subscriber.streams["toy/1"]
        eventually(lambda: first.resident_tokens("r0") == 16 and second.resident_tokens("r1") == 16)
        assert first.resident_tokens("r1") is None
    for publisher in publishers:
        publisher.close()


def test_an_endpoint_that_cannot_be_used_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must begin with tcp"):
        EventSource("a", "http://127.0.0.1:5557")
    with pytest.raises(ConfigError, match="cannot use"):
        Subscriber([EventSource("a", f"ipc://{tmp_path}/no/folder", bind=True)]).start()
