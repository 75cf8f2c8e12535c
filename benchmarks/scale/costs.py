"""Measure what engines, and other proxies, cost one proxy process, with the product's own parts.

Byte counts are exact. Times are processor time of one thread, in microseconds: they depend on the
machine and hardly on what else runs on it.
"""

import asyncio
import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from benchmarks.scale.event_batches import event_batches
from ragboost.booster.tenants import TenantKey, Tenants
from ragboost.cache_sync.event_stream import EventStream
from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.config import Settings
from ragboost.proxy.replicas.load_board import LoadBoard
from ragboost.proxy.replicas.messages import SentPrompt, encode
from ragboost.proxy.routing.admission import RoutingRequest
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.upstream.backend import Load
from ragboost.proxy.upstream.backends import Backends
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
    """Costs of one proxy process."""

    event_bytes: float  # for a prompt that any engine computes
    event_us: float  # to decode and apply them, and for the index
    layout_bytes: float  # of the message that tells another process the documents of a prompt
    learn_us: float  # to take it over
    route_us: float  # to route a request
    load_bytes: float  # per busy engine, of a load report
    load_us: float  # per busy engine, to take over a load report
    mirror_bytes: float  # of an engine's blocks in memory


def unit_costs(*, prompts: int = 400, engines: int = 100) -> UnitCosts:
    """Measure all costs over so many prompts, and those per engine over so many engines."""
    event_bytes, event_us, mirror_bytes = asyncio.run(_follow(prompts))
    layouts = [encode(prompt) for prompt in make_prompts(prompts, tokens=PROMPT_TOKENS)]
    load_bytes, load_us = _loads(engines)
    return UnitCosts(
        event_bytes=round(event_bytes),
        event_us=round(event_us, 1),
        layout_bytes=round(sum(map(len, layouts)) / prompts),
        learn_us=round(asyncio.run(_learn(prompts)), 1),
        route_us=round(asyncio.run(_route(engines, prompts)), 1),
        load_bytes=round(load_bytes, 1),
        load_us=round(load_us, 2),
        mirror_bytes=round(mirror_bytes),
    )


def make_prompts(num: int, *, tokens: int) -> Sequence[SentPrompt]:
    """Return one layout per prompt, of documents from a shared pool behind one system prompt."""
    rng = random.Random(1)
    pool = [f"{rng.getrandbits(128):032x}" for _ in range(300)]
    length = tokens // DOCUMENTS
    prompts = []
    for number in range(num):
        documents = tuple("0123456789abcdef" + key for key in rng.sample(pool, DOCUMENTS))
        layout = PromptLayout(
            TenantKey("model", ""),
            documents,
            (length,) * DOCUMENTS,
            (8,) * DOCUMENTS,
            20,
            tokens,
            prompt_prefix="0123456789abcdef",
            scale=1.1,
        )
        prompts.append(SentPrompt("127.0.0.1:8000", f"{number:032x}", layout))
    return prompts


async def learn(prompts: Sequence[SentPrompt]) -> None:
    follower = CacheFollower("127.0.0.1:8000", Tenants(Settings()))
    for prompt in prompts:
        await follower.learn(prompt.request_id, prompt.layout)


def steady_batches(num: int, *, cache_blocks: int, num_blocks: int = _BLOCKS) -> list[bytes]:
    """Return event batches of a full cache: each prompt stores blocks and removes as many.

    The first ones fill the cache; `num` follow.
    """
    num_filling = -(-cache_blocks // num_blocks)
    return event_batches(
        num_filling + num,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        cache_prompts=num_filling,
    )


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
    prompts = make_prompts(num, tokens=PROMPT_TOKENS)
    started = time.thread_time()
    await learn(prompts)
    return (time.thread_time() - started) / num * 1e6


async def _route(engines: int, num: int, *, num_sequences: int = 20) -> float:
    """Return the time to route a request; each engine holds some sequences."""
    settings = Settings.model_validate({"backends": _urls(engines)})
    tenants = Tenants(settings)
    tenant = tenants.get(_TENANT)
    dispatcher = Dispatcher(settings, backends=Backends.of(settings), tenants=tenants)
    rng = random.Random(2)
    tokens = PROMPT_TOKENS // DOCUMENTS
    pool = [Document(f"{at} ".ljust(4 * tokens, "x"), id=str(at)) for at in range(500)]
    for backend in dispatcher.backends.all:
        for _ in range(num_sequences):
            tenant.booster(backend.name).boost("?", rng.sample(pool, DOCUMENTS))
    admissions = []
    for _ in range(max(1, num // 10)):
        front = tuple(rng.sample(pool, DOCUMENTS))
        request = RoutingRequest(
            tenant=tenant, find_leading=partial(Request, "?", front), prompt_tokens=PROMPT_TOKENS
        )
        admissions.append(dispatcher.admission(request))
    started = time.thread_time()
    for admission in admissions:
        await dispatcher.router.place(admission)
        admission.close()
    return (time.thread_time() - started) / len(admissions) * 1e6


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
