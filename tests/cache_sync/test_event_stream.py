"""A stream that is fed anything at all: EXACT is never said of a mirror that differs."""

import random
from collections import Counter

import pytest

from ragboost.cache_events import EventBatch, encode_batch
from ragboost.cache_sync.event_stream import EventStream, StreamState
from ragboost.cache_sync.prefix_mirror import Changes
from tests.cache_sync.toy import ToyCache

DOCUMENTS = [[100 * i + j for j in range(6)] for i in range(5)]


class World:
    """An engine that restarts, a line that loses, and what was true after each batch."""

    def __init__(self, *, has_replay: bool, buffer_steps: int) -> None:
        self.buffer_steps = buffer_steps
        self.line: list[tuple[int, bytes]] = []
        self.truth: list[list[Counter[object]]] = []  # per process, before batch n
        self.stream = EventStream("toy", has_replay=has_replay, on_change=self.note)
        self.known: dict[str, int] = {}
        self.clock = 0.0
        self.boot(is_clock_back=False)

    def note(self, changes: Changes) -> None:
        if changes.is_cleared:
            self.known.clear()
        self.known |= changes.resident_tokens

    def boot(self, *, is_clock_back: bool) -> None:
        self.cache = ToyCache(num_blocks=9)
        self.buffer: list[tuple[int, bytes]] = []
        self.truth.append([Counter()])
        if is_clock_back:
            self.clock -= 100
        self.line.clear()
        self.stream.disconnected()
        self.stream.connected()

    def publish(self, picks: list[int]) -> None:
        tokens = [token for i in picks for token in DOCUMENTS[i]]
        self.cache.run(tokens, f"r{len(self.truth)}-{len(self.truth[-1])}", again=picks[0] % 2)
        if not picks[1:]:
            self.cache.clear()
        batch = self.cache.take()
        if batch.events:
            self.clock += 1
            payload = encode_batch(EventBatch(ts=self.clock, events=batch.events, dp_rank=0))
            frame = (len(self.truth[-1]) - 1, payload)
            self.truth[-1].append(Counter(self.cache.blocks.values()))
            self.line.append(frame)
            self.buffer = [*self.buffer, frame][-self.buffer_steps :]

    def answer(self, *, keep: int, is_ending: bool) -> None:
        """Serve a replay, in which the frame after the first `keep` is lost."""
        start = self.stream.take_request()
        if start is None:
            return
        found = [frame for frame in self.buffer if frame[0] >= start]
        for seq, payload in found[:keep] + found[keep + 1 :]:
            self.stream.replay(seq, payload)
            if self.stream.has_request:
                return
        if is_ending:
            self.stream.replay_ended()
        else:
            self.stream.replay_failed()

    def check(self) -> None:
        self.stream.mirror.check_integrity()
        held = Counter(self.stream.mirror.copies())
        if self.stream.state is StreamState.EXACT:
            position = self.stream.next_seq
            assert position is not None
            states = [truth[position] for truth in self.truth if position < len(truth)]
            assert held in states
        if self.stream.state is not StreamState.FALLBACK:
            for request, tokens in self.known.items():
                assert (self.stream.resident_tokens(request) or 0) == tokens


HABITS = {
    "publish": 12,
    "deliver": 14,
    "deliver late": 2,
    "lose": 2,
    "repeat": 2,
    "answer": 5,
    "answer with a hole": 1,
    "fail": 1,
    "probe": 1,
    "break": 1,
    "restart": 1,
    "restart back": 1,
}


def disturb(world: World, dice: random.Random) -> None:
    """Let one thing happen, good or bad."""
    name = dice.choices(list(HABITS), weights=list(HABITS.values()))[0]
    at = dice.randrange(len(world.line)) if world.line else 0
    if name == "publish":
        world.publish(dice.sample(range(5), dice.choice([1, 2, 2, 3, 3, 3])))
    elif name == "deliver" and world.line:
        world.stream.receive(*world.line.pop(0))
    elif name == "deliver late" and world.line:
        world.stream.receive(*world.line.pop(at))
    elif name == "lose" and world.line:
        world.line.pop(at)
    elif name == "repeat" and world.line:
        world.stream.receive(*world.line[at])
    elif name == "answer":
        world.answer(keep=10_000, is_ending=True)
    elif name in ("answer with a hole", "fail"):
        world.answer(keep=1 + dice.randrange(6), is_ending=name != "fail")
    elif name == "probe":
        world.stream.probe()
    elif name == "break":
        world.stream.disconnected()
        world.stream.connected()
    elif name.startswith("restart"):
        world.boot(is_clock_back=world.stream.has_replay and name == "restart back")


@pytest.mark.parametrize("has_replay", [True, False])
@pytest.mark.parametrize("buffer_steps", [3, 10_000])
def test_exact_is_only_said_of_a_mirror_that_equals_the_cache(
    has_replay: bool, buffer_steps: int
) -> None:
    num_exact = 0
    for seed in range(100):
        world, dice = World(has_replay=has_replay, buffer_steps=buffer_steps), random.Random(seed)
        for _ in range(80):
            disturb(world, dice)
            world.check()
            num_exact += world.stream.state is StreamState.EXACT
    assert num_exact > 500


def test_with_replay_every_trouble_ends_exact_after_one_replay() -> None:
    for seed in range(150):
        world, dice = World(has_replay=True, buffer_steps=10_000), random.Random(seed)
        for _ in range(60):
            disturb(world, dice)
        world.answer(keep=10_000, is_ending=True)
        world.stream.probe()
        while world.stream.has_request:
            world.answer(keep=10_000, is_ending=True)
        world.check()
        assert world.stream.state is StreamState.EXACT
        assert world.stream.next_seq == len(world.truth[-1]) - 1


def test_an_unreadable_batch_empties_the_mirror_and_is_counted() -> None:
    world = World(has_replay=False, buffer_steps=1)
    world.publish([0, 1])
    world.stream.receive(*world.line.pop())
    assert world.stream.state is StreamState.EXACT
    world.stream.receive(1, b"\xc1")
    stream = world.stream
    assert (stream.state, len(stream.mirror)) == (StreamState.DEGRADED, 0)
    assert stream.counts["num_unreadable"] == 1
