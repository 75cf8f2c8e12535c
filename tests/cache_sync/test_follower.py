"""What a cache follower remembers of prompts, and for how long."""

import asyncio

import pytest

from ragboost.booster.tenants import TenantKey, Tenants
from ragboost.cache_events import EventBatch, encode_batch
from ragboost.cache_sync.event_stream import EventStream
from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prefix_mirror import Changes
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.config import Settings
from ragboost.types import Document
from tests.cache_sync.toy import ToyCache
from tests.eventually import run_event_loop

TENANT = TenantKey("m", "")
TOKENS = list(range(40))


class World:
    """A follower of one engine, at a time of its own."""

    def __init__(self, *, without_events: bool = False) -> None:
        self.now = 0.0
        self.tenants = Tenants(Settings())
        self.tenants.get(TENANT)
        self.follower = CacheFollower("engine", self.tenants, clock=lambda: self.now)
        self.stream = EventStream("toy", has_replay=False, on_change=self._note)
        if not without_events:
            self.follower.streams["toy"] = self.stream
        self.cache, self.num_batches = ToyCache(), 0
        self.stream.connected()

    def _note(self, changes: object) -> None:
        self.follower.on_change("toy", changes)  # type: ignore[arg-type]

    async def ask(self, request_id: str, *, is_cached: bool) -> None:
        layout = PromptLayout(TENANT, (request_id,), (30,), (5,), 5, 40, prompt_prefix=request_id)
        layout = self.follower.on_sent(request_id, layout, cached_tokens=0)
        if is_cached:
            self.cache.run(TOKENS, request_id)
            self.publish()
        self.follower.on_response(request_id, layout, prompt_tokens=40)
        await self.follower.step()

    def publish(self) -> None:
        payload = encode_batch(EventBatch(ts=self.now, events=self.cache.take().events, dp_rank=0))
        self.stream.receive(self.num_batches, payload)
        self.num_batches += 1

    async def wait(self, seconds: float) -> None:
        self.now += seconds
        await self.follower.step()


async def test_a_prompt_is_forgotten_when_it_is_not_cached_and_no_event_can_come() -> None:
    world = World()
    await world.ask("cached", is_cached=True)
    for number in range(50):
        await world.ask(f"not cached {number}", is_cached=False)
    assert world.follower.num_prompts == 51
    await world.wait(30.0)
    assert world.follower.num_prompts == 51
    await world.wait(31.0)
    assert world.follower.num_prompts == 1


async def test_the_prompts_of_an_engine_that_lost_its_cache_are_forgotten() -> None:
    world = World()
    await world.ask("cached", is_cached=True)
    await world.wait(61.0)
    assert world.follower.num_prompts == 1
    world.stream.disconnected()
    world.stream.connected()
    world.cache = ToyCache()
    await world.wait(1.0)
    await world.ask("after", is_cached=True)
    await world.wait(61.0)
    await world.wait(61.0)
    assert world.follower.num_prompts == 1


async def test_a_request_with_the_id_of_an_earlier_one_is_kept_for_its_own_time() -> None:
    world = World()
    await world.ask("id", is_cached=False)
    await world.wait(40.0)
    await world.ask("id", is_cached=False)
    await world.wait(40.0)
    assert world.follower.num_prompts == 1
    await world.wait(21.0)
    assert world.follower.num_prompts == 0


async def test_a_prompt_that_waits_in_its_engine_outlives_a_clear_of_the_cache() -> None:
    world = World()
    layout = PromptLayout(TENANT, ("a",), (30,), (5,), 5, 40)
    layout = world.follower.on_sent("waits", layout, cached_tokens=0)
    world.follower.on_change("toy", Changes({}, is_cleared=True))
    await world.wait(0.0)
    await world.wait(90.0)
    assert world.follower.num_prompts == 1

    world.follower.on_response("waits", layout, prompt_tokens=40)
    await world.wait(61.0)
    assert world.follower.num_prompts == 0


@pytest.mark.parametrize(("has_reused", "num_cached"), [(True, 1), (False, 3)])
async def test_only_what_another_process_had_computed_counts_as_cached(
    has_reused: bool, num_cached: int
) -> None:
    documents = [Document(f"Document {i} tells of {i}. " * 20) for i in range(3)]
    one, other = World(without_events=True), World(without_events=True)
    told: list[tuple[str | None, PromptLayout]] = []
    one.follower.on_layout.append(lambda name, layout: told.append((name, layout)))
    tenant = one.tenants.get(TENANT)
    booster = tenant.booster("engine")
    context = booster.boost("Why?", documents[1:2])  # exact, so that it is cached
    context = booster.boost("Why?", documents, recompute_ratio=0.15)
    layout = PromptLayout.of(
        context,
        TENANT,
        prompt_prefix="",
        bytes_before=0,
        bytes_behind=0,
        is_measured=False,
        counter=tenant.tokens,
    )
    layout = one.follower.on_sent(None, layout, cached_tokens=context.predicted_cached_tokens)
    one.follower.on_response(None, layout, prompt_tokens=layout.total, has_reused=has_reused)

    for name, each in told:
        await other.follower.learn(name, each)

    there = other.tenants.get(TENANT).booster("engine")
    lengths = tenant.tokens.count_documents(context.documents)
    assert there.cached_tokens(context.documents) == sum(lengths[:num_cached])


async def test_an_idle_follower_sets_no_timer_and_steps_when_something_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, timers, loop = World(), [], asyncio.get_running_loop()
    call_at = loop.call_at
    monkeypatch.setattr(loop, "call_at", lambda *a, **k: timers.append(a) or call_at(*a, **k))
    running = asyncio.create_task(world.follower.run())
    await run_event_loop()
    world.publish()  # an empty cache, all of which is known
    world.follower.refresh()
    await run_event_loop()
    assert world.follower.is_exact
    await run_event_loop()
    assert not timers
    await world.ask("cached", is_cached=True)
    await run_event_loop()
    assert timers  # until no event of the request can come
    running.cancel()
