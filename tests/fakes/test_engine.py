"""FakeEngine's cache is exact and its events match it."""

import httpx
import msgspec
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import FakeEngine
from tests.fakes.prefix_cache import Event, PrefixCache


def test_hits_are_whole_blocks_and_never_the_whole_prompt() -> None:
    cache = PrefixCache(block_size=4)
    cache.insert(range(10))
    assert cache.match(range(10)) == 8
    assert cache.match(range(8)) == 4
    assert cache.match([*range(6), 99, 99, 99]) == 4
    assert cache.match(range(10), salt="other") == 0


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 2), max_size=14), max_size=12), st.integers(1, 6))
def test_events_rebuild_the_cache(prompts: list[list[int]], num_blocks: int) -> None:
    events: list[Event] = []
    cache = PrefixCache(block_size=2, capacity_tokens=2 * num_blocks, publish=events.extend)
    for prompt in prompts:
        cache.insert(prompt)
        assert len(cache.blocks) <= num_blocks
        assert all(b.parent is None or b.parent in cache.blocks for b in cache.blocks.values())
    mirror: set[int] = set()
    for event in events:
        if event["type"] == "BlockStored":
            mirror |= set(event["block_hashes"])
            assert len(event["token_ids"]) == 2 * len(event["block_hashes"])
        else:
            mirror -= set(event["block_hashes"])
    assert mirror == set(cache.blocks)


def test_a_repeated_prompt_is_reported_as_cached() -> None:
    with FakeEngine(block_size=4) as engine:
        body = {"messages": [{"role": "user", "content": "one two three four five six seven"}]}
        for _ in range(2):
            usage = httpx.post(f"{engine.url}/v1/chat/completions", json=body).json()["usage"]
        first, second = engine.completions
        assert first.cached_tokens == 0
        assert usage["prompt_tokens_details"]["cached_tokens"] == second.cached_tokens > 0
        tokens = httpx.post(f"{engine.url}/tokenize", json=body).json()
        assert tokens["count"] == second.prompt_tokens


def test_events_are_framed_as_vllm_frames_them() -> None:
    with FakeEngine(block_size=4, events=True) as engine, zmq.Context() as context:
        assert engine.events is not None
        with context.socket(zmq.SUB) as subscriber:
            subscriber.connect(engine.events.endpoint)
            subscriber.subscribe(b"")
            while not subscriber.poll(50):  # the subscription takes a moment to arrive
                httpx.post(f"{engine.url}/v1/completions", json={"prompt": "a b c d e f g h i"})
                engine.cache.clear()
            topic, seq, payload = subscriber.recv_multipart()
        assert (topic, len(seq)) == (b"kv-events", 8)
        _, events, rank = msgspec.msgpack.decode(payload)
        assert rank == 0
        assert events[0]["type"] in {"BlockStored", "AllBlocksCleared"}
