"""Simulate proxies in front of engines in virtual time: the hits lost to what a proxy knows late.

The proxies are the product's own parts: `Dispatcher`, `Booster`, an `EventStream` and a
`CacheFollower` for each engine, and a `LoadBoard`. An engine is an exact prefix cache that
publishes encoded event batches, and computes one prompt at a time. A network delivers events,
layouts and loads after a delay. Figures are the same on every machine.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from benchmarks.datasets.workloads import Workload
from benchmarks.scale.load import arrival_gaps
from ragboost.booster.tenants import TenantKey, Tenants
from ragboost.cache_sync.event_stream import EventStream
from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.config import Settings
from ragboost.proxy.replicas.load_board import LoadBoard
from ragboost.proxy.routing.admission import RoutingRequest
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.upstream.backends import Backends
from ragboost.types import Document, Request
from tests.fakes.prefix_cache import Block, PrefixCache
from tests.fakes.virtual_time import virtual_loop

TOKENS_PER_S = 50_000  # that an engine computes
BLOCK_SIZE = 64
QUESTION_TOKENS = 64
DECODE_S = 0.5
LOAD_INTERVAL_S = 0.1
_BYTES_PER_TOKEN = 4  # the estimate of lengths is then exact
_MAX_DOCUMENT_TOKENS = 2048
_TENANT = TenantKey("m", "")

Send = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


class Cluster(NamedTuple):
    """The system that is simulated; a request arrives at a random proxy."""

    engines: int
    proxies: int
    delay_s: float = 0.001  # until a proxy has an event, another proxy's layout or its load
    # Proxies tell each other the documents of their prompts, as replicas do.
    are_layouts_shared: bool = False
    capacity_tokens: int = 200_000  # of an engine's prefix cache
    load: float = 0.7  # computed tokens, were none cached, as a share of what engines can compute


class FastCache(PrefixCache):
    """`PrefixCache` with a cheaper hash; of numbers alone, so that it is the same every time."""

    def _chain(self, tokens: Sequence[int], salt: str) -> list[tuple[int, Block]]:
        chain: list[tuple[int, Block]] = []
        parent: int | None = None
        size = self.block_size
        for start in range(0, len(tokens) - size + 1, size):
            block = tuple(tokens[start : start + size])
            block_hash = hash((parent or 0, block)) & (2**63 - 1)
            chain.append((block_hash, Block(block, parent)))
            parent = block_hash
        return chain


class SimulatedEngine:
    """An engine with a prefix cache and one lane, which counts tokens and bytes of its events."""

    def __init__(self, capacity_tokens: int) -> None:
        self.on_batch: Callable[[int, bytes], None] = lambda *_: None  # number and bytes
        self.prompt_tokens = self.cached_tokens = self.num_bytes = 0
        self._cache = FastCache(BLOCK_SIZE, capacity_tokens, publish=self._publish)
        self._lane = asyncio.Lock()
        self._numbers = itertools.count()

    async def prefill(self, tokens: Sequence[int], request_id: str) -> int:
        """Compute what is not cached; return the cached tokens."""
        async with self._lane:
            cached = self._cache.match(tokens)
            await asyncio.sleep((len(tokens) - cached) / TOKENS_PER_S)
            self._cache.insert(tokens, session_id=request_id)
        self.prompt_tokens += len(tokens)
        self.cached_tokens += cached
        return cached

    def _publish(self, events: list[dict[str, Any]]) -> None:
        data = msgspec.msgpack.encode([asyncio.get_running_loop().time(), events, 0])
        self.num_bytes += len(data)
        self.on_batch(next(self._numbers), data)


class SimulatedProxy:
    """A proxy: it follows every engine, and chooses one for each request."""

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self.too_many = self.too_few = 0  # cached tokens predicted in vain, and not predicted
        backends = Backends.of(settings)
        tenants = Tenants(settings)
        self._tenant = tenants.get(_TENANT)
        self._dispatcher = Dispatcher(settings, backends=backends, tenants=tenants)
        self.board = LoadBoard(backends.all, on_change=lambda: None, clock=clock)
        self.followers: dict[str, CacheFollower] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        for each in backends.all:
            follower = CacheFollower(each.name, tenants, clock=clock)
            stream = EventStream(each.name, on_change=partial(follower.on_change, each.name))
            stream.connected()
            follower.streams = {each.name: stream}
            self.followers[each.name], self._locks[each.name] = follower, asyncio.Lock()

    async def hear(self, engine: str, number: int, data: bytes) -> None:
        """Apply an event batch."""
        follower = self.followers[engine]
        follower.streams[engine].receive(number, data)
        async with self._locks[engine]:
            await follower.step()

    async def learn(self, engine: str, request_id: str | None, layout: PromptLayout) -> None:
        """Take over the layout of another proxy's prompt."""
        async with self._locks[engine]:
            await self.followers[engine].learn(request_id, layout)
            await self.followers[engine].step()

    async def request(
        self,
        documents: tuple[Document, ...],
        request_id: str,
        *,
        engines: dict[str, SimulatedEngine],
        token_ids: Callable[[Sequence[Document], str], list[int]],
    ) -> None:
        """Route, order and send one request, until its response has ended."""
        tokens = sum(self._tenant.tokens.count_documents(documents)) + QUESTION_TOKENS
        front = Request("why?", documents)
        request = RoutingRequest(
            tenant=self._tenant, find_leading=lambda: front, prompt_tokens=tokens
        )
        admission = self._dispatcher.admission(request)
        with await self._dispatcher.enter(admission):
            name = admission.backend.name
            async with self._tenant.lock:
                context = self._tenant.booster(name).boost("why?", documents)
            entry = context.index_entry
            assert entry is not None, "a first turn has an entry"
            frames = (0,) * len(entry.documents)
            layout = PromptLayout(
                _TENANT, entry.documents, entry.tokens, frames, 0, tokens, is_measured=True
            )
            follower = self.followers[name]
            expected = context.predicted_cached_tokens
            layout = follower.on_sent(request_id, layout, cached_tokens=expected)
            predicted = follower.predict(layout, expected)
            prompt = token_ids(context.documents, request_id)
            cached = await engines[name].prefill(prompt, request_id)
            self.too_many += max(0, predicted - cached)
            self.too_few += max(0, cached - predicted)
            admission.prefill_done()
            await asyncio.sleep(DECODE_S)
            follower.on_response(request_id, layout, prompt_tokens=len(prompt))


class ScaleRun:
    """One simulation; use `run` in a virtual event loop."""

    def __init__(self, cluster: Cluster, workload: Workload, *, seed: int = 1) -> None:
        loop = asyncio.get_running_loop()
        self.cluster = cluster
        self._contexts = workload.contexts
        self._lengths = {name: _whole_blocks(n) for name, n in workload.tokens.items()}
        self._starts = {
            str(name): at * _MAX_DOCUMENT_TOKENS for at, name in enumerate(self._lengths)
        }
        self._documents = {
            name: Document(text=f"{name} ".ljust(n * _BYTES_PER_TOKEN, "x"), id=str(name))
            for name, n in self._lengths.items()
        }
        self._rng = random.Random(seed)
        self._seed = seed
        self._tasks: set[asyncio.Task[None]] = set()
        urls = [f"http://e{number}" for number in range(cluster.engines)]
        settings = Settings.model_validate(
            {"backends": [{"url": url} for url in urls], "ordering": {"tail": "popularity"}}
        )
        self.engines = {
            each.name: SimulatedEngine(cluster.capacity_tokens)
            for each in Backends.of(settings).all
        }
        self.proxies = [SimulatedProxy(settings, loop.time) for _ in range(cluster.proxies)]
        for name, engine in self.engines.items():
            engine.on_batch = partial(self._spread_events, name)
        if cluster.are_layouts_shared:
            for proxy in self.proxies:
                for name, follower in proxy.followers.items():
                    follower.on_layout.append(partial(self._spread_layout, proxy, name))

    async def run(self) -> dict[str, Any]:
        """Send all requests and return the figures of the second half."""
        beats = asyncio.create_task(self._exchange_loads())
        mean = sum(self._lengths[d] for c in self._contexts for d in c) / len(self._contexts)
        per_s = self.cluster.load * self.cluster.engines * TOKENS_PER_S / mean
        num = len(self._contexts)
        gaps = arrival_gaps(num, per_s=per_s, arrivals="poisson", seed=self._seed)
        before = (0, 0, 0, 0)
        for at, (context, gap) in enumerate(zip(self._contexts, gaps, strict=True)):
            await asyncio.sleep(gap)
            if at == num // 2:
                before = self._totals()
            self._start(self._request(context, f"r{at}"))
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        beats.cancel()
        await asyncio.gather(beats, return_exceptions=True)
        prompt, cached, many, few = (
            now - then for now, then in zip(self._totals(), before, strict=True)
        )
        return {
            **self.cluster._asdict(),
            "requests": num,
            "hit_rate": round(cached / prompt, 4),
            "predicted_in_vain": round(many / prompt, 4),
            "not_predicted": round(few / prompt, 4),
            "event_bytes": sum(engine.num_bytes for engine in self.engines.values()) // num,
        }

    def _totals(self) -> tuple[int, int, int, int]:
        engines, proxies = self.engines.values(), self.proxies
        return (
            sum(each.prompt_tokens for each in engines),
            sum(each.cached_tokens for each in engines),
            sum(each.too_many for each in proxies),
            sum(each.too_few for each in proxies),
        )

    async def _request(self, names: Sequence[Hashable], request_id: str) -> None:
        documents = tuple(self._documents[name] for name in names)
        proxy = self._rng.choice(self.proxies)
        await proxy.request(documents, request_id, engines=self.engines, token_ids=self._token_ids)

    def _token_ids(self, documents: Sequence[Document], request_id: str) -> list[int]:
        """Return the prompt: the same tokens for a document everywhere, and a question."""
        tokens: list[int] = []
        for document in documents:
            start = self._starts[str(document.id)]
            tokens.extend(range(start, start + len(document.text) // _BYTES_PER_TOKEN))
        first = (len(self._starts) + int(request_id[1:])) * _MAX_DOCUMENT_TOKENS
        return [*tokens, *range(first, first + QUESTION_TOKENS)]

    def _spread_events(self, engine: str, number: int, data: bytes) -> None:
        for proxy in self.proxies:
            self._later(partial(proxy.hear, engine, number, data))

    def _spread_layout(
        self, sender: SimulatedProxy, engine: str, request_id: str | None, layout: PromptLayout
    ) -> None:
        for proxy in self.proxies:
            if proxy is not sender:
                self._later(partial(proxy.learn, engine, request_id, layout))

    async def _exchange_loads(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOAD_INTERVAL_S)
            for number, sender in enumerate(self.proxies):
                loads = sender.board.own()
                for proxy in self.proxies:
                    if proxy is not sender:
                        put = partial(proxy.board.put, str(number), loads)
                        loop.call_later(self.cluster.delay_s, put)
            for proxy in self.proxies:
                proxy.board.expire()

    def _later(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(self.cluster.delay_s, lambda: self._start(work()))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def simulate_cluster(cluster: Cluster, workload: Workload) -> dict[str, Any]:
    """Run one simulation in virtual time."""

    async def run() -> dict[str, Any]:
        return await ScaleRun(cluster, workload).run()

    with virtual_loop() as loop:
        return loop.run_until_complete(run())


def _whole_blocks(tokens: int) -> int:
    """Round a length to blocks: what is lost at their borders is not what is measured here."""
    return max(BLOCK_SIZE, tokens // BLOCK_SIZE * BLOCK_SIZE)
