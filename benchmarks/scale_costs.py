"""Measure what engines, and other proxies, cost one proxy process, with the product's own parts.

Byte counts are exact. Times are processor time of one thread, in microseconds: they depend on the
machine and hardly on what else runs on it.
"""

import asyncio
import random
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from benchmarks.workers import make_prompts
from ragboost.booster.tenants import TenantKey, Tenants
from ragboost.cache_sync.event_stream import EventStream
from ragboost.cache_sync.follower import CacheFollower
from ragboost.config import Settings
from ragboost.engine_hooks.events import BlockRemoved, BlockStored, EventBatch, encode_batch
from ragboost.proxy.peers.load_board import LoadBoard
from ragboost.proxy.peers.messages import encode
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.upstream.backends import Backends, Load
from ragboost.types import Document, Request

PROMPT_TOKENS = 4_000
CACHED_SHARE = 0.5
BLOCK_SIZE = 16
DOCUMENTS = 15
CACHE_TOKENS = 500_000  # of an engine's prefix cache
_BLOCKS = round(PROMPT_TOKENS * (1 - CACHED_SHARE) / BLOCK_SIZE)  # new ones of a prompt
_URL = "http://vllm-{number}.vllm.inference.svc.cluster.local:8000"
_TENANT = TenantKey("m", "")


class UnitCosts(NamedTuple):
    """Costs of one proxy process.

    Attributes:
        event_bytes: for a prompt that any engine computes.
        event_us: to decode and apply them, and for the index.
        layout_bytes: of the message that tells another process the documents of a prompt.
        learn_us: to take it over.
        search_us: per engine, to route a request.
        load_bytes: per busy engine, of a load report.
        load_us: per busy engine, to take over a load report.
        mirror_bytes: of an engine's blocks in memory.
    """

    event_bytes: float
    event_us: float
    layout_bytes: float
    learn_us: float
    search_us: float
    load_bytes: float
    load_us: float
    mirror_bytes: float


def unit_costs(*, prompts: int = 400, engines: int = 100) -> UnitCosts:
    """Measure all costs.

    Args:
        prompts: that are followed, and routed.
        engines: for the costs per engine.
    """
    event_bytes, event_us, mirror_bytes = asyncio.run(_follow(prompts))
    layouts = [encode(prompt) for prompt in make_prompts(prompts, tokens=PROMPT_TOKENS)]
    load_bytes, load_us = _loads(engines)
    return UnitCosts(
        event_bytes=round(event_bytes),
        event_us=round(event_us, 1),
        layout_bytes=round(sum(map(len, layouts)) / prompts),
        learn_us=round(asyncio.run(_learn(prompts)), 1),
        search_us=round(asyncio.run(_route(engines, prompts)), 1),
        load_bytes=round(load_bytes, 1),
        load_us=round(load_us, 2),
        mirror_bytes=round(mirror_bytes),
    )


def steady_batches(num: int, *, cache_blocks: int, num_blocks: int = _BLOCKS) -> list[bytes]:
    """Return event batches of a full cache: each prompt stores blocks and removes as many.

    The first ones fill the cache; `num` follow.
    """
    rng = random.Random(0)
    held: deque[list[int | bytes]] = deque()
    batches = []
    num_filling = -(-cache_blocks // num_blocks)
    for number in range(num_filling + num):
        hashes: list[int | bytes] = [rng.getrandbits(64) for _ in range(num_blocks)]
        stored = BlockStored(
            block_hashes=hashes,
            token_ids=[rng.randrange(150_000) for _ in range(num_blocks * BLOCK_SIZE)],
            block_size=BLOCK_SIZE,
            medium="GPU",
            group_idx=0,
            session_id=f"{number:032x}",
        )
        removed: list[BlockRemoved] = []
        if len(held) >= num_filling:
            gone = held.popleft()[::-1]
            removed = [BlockRemoved(block_hashes=gone, medium="GPU", group_idx=0)]
        held.append(hashes)
        batches.append(encode_batch(EventBatch(float(number), [*removed, stored], 0)))
    return batches


async def _follow(num: int) -> tuple[float, float, float]:
    """Return bytes and time per prompt, and the memory of a full cache's mirror.

    The prompts are of other proxies: half of the work of an own one is in `learn_us`.
    """
    cache_blocks = CACHE_TOKENS // BLOCK_SIZE
    batches = steady_batches(num, cache_blocks=cache_blocks)
    follower = CacheFollower("e", Tenants(Settings()))
    stream = EventStream(on_change=partial(follower.on_change, "e"))
    stream.connected()
    follower.streams = {"e": stream}
    tracemalloc.start()
    for number, batch in enumerate(batches[:-num]):
        stream.receive(number, batch)
        await follower.step()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    steady = list(enumerate(batches))[-num:]
    started = time.thread_time()
    for number, batch in steady:
        stream.receive(number, batch)
        await follower.step()
    spent = (time.thread_time() - started) / num * 1e6
    return sum(len(batch) for _, batch in steady) / num, spent, size


async def _learn(num: int) -> float:
    follower = CacheFollower("e", Tenants(Settings()))
    prompts = make_prompts(num, tokens=PROMPT_TOKENS)
    started = time.thread_time()
    for prompt in prompts:
        await follower.learn(prompt.request_id, prompt.layout)
    return (time.thread_time() - started) / num * 1e6


async def _route(engines: int, num: int, *, held: int = 20) -> float:
    """Return the time to route a request, per engine; each engine holds some sequences."""
    settings = Settings.model_validate({"backends": _urls(engines)})
    tenants = Tenants(settings)
    tenant = tenants.get(_TENANT)
    dispatcher = Dispatcher(settings, backends=Backends.of(settings), tenants=tenants)
    rng = random.Random(2)
    tokens = PROMPT_TOKENS // DOCUMENTS
    pool = [Document(f"{at} ".ljust(4 * tokens, "x"), id=str(at)) for at in range(500)]
    for backend in dispatcher.backends.all:
        for _ in range(held):
            tenant.booster(backend.name).boost("?", rng.sample(pool, DOCUMENTS))
    admissions = [dispatcher.admission() for _ in range(max(1, num // 10))]
    for admission in admissions:
        admission.tenant, admission.prompt_tokens = tenant, PROMPT_TOKENS
        admission.leading = Request("?", tuple(rng.sample(pool, DOCUMENTS)))
    started = time.thread_time()
    for admission in admissions:
        await dispatcher.router.place(admission)
        admission.close()
    return (time.thread_time() - started) / len(admissions) / engines * 1e6


def _loads(engines: int) -> tuple[float, float]:
    """Return bytes and time per busy engine of a load report."""
    backends = Backends.of(Settings.model_validate({"backends": _urls(engines)}))
    board = LoadBoard(backends.all, on_change=lambda: None)
    rng = random.Random(3)

    def report() -> dict[str, Load]:
        return {
            each.key: Load(rng.randrange(50), rng.randrange(60), rng.randrange(90_000))
            for each in backends.all
        }

    reports = [report() for _ in range(50)]
    size = len(msgspec.msgpack.encode(["0123456789abcdef", reports[0]]))
    spent = _us([partial(board.put, f"p{at % 5}", each) for at, each in enumerate(reports)])
    return size / engines, spent / engines


def _urls(engines: int) -> list[dict[str, str]]:
    return [{"url": _URL.format(number=number)} for number in range(engines)]


def _us(work: Sequence[Callable[[], None]]) -> float:
    started = time.thread_time()
    for each in work:
        each()
    return (time.thread_time() - started) / len(work) * 1e6
