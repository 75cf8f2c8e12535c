"""Measure the waiting room and cache-aware routing separately: TTFT and token hit rate.

    python -m benchmarks.scheduling --json
    python -m benchmarks.scheduling --only router --workload zipf --requests 300

The proxy's own dispatcher, router, waiting room and Boosters run against simulated engines in
virtual time, so results do not depend on the machine. A simulated engine has an LRU prefix cache,
prefills uncached tokens at a constant rate, in order of arrival, on `--lanes` parallel lanes, and
then decodes. All else is equal in all arms. Times are virtual seconds.
"""

import argparse
import asyncio
import json
import selectors
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.load_arms import Response, arrival_gaps
from benchmarks.workloads import GENERATORS, Workload, generate
from ragboost.booster.tenants import Tenant, TenantKey, Tenants
from ragboost.config import Settings
from ragboost.index import ContextIndex
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.upstream.backends import Backends
from ragboost.types import Document, Request

PREFILL_TOKENS_PER_S = 20_000
GENERATE_S = 1.5
CAPACITY_TOKENS = 400_000
BYTES_PER_TOKEN = 4

POPULARITY = {"ordering": {"tail": "popularity"}, "waiting_room": {"mode": "off"}}
ADAPTIVE = {**POPULARITY, "waiting_room": {"mode": "adaptive"}}
LIMIT = {"backend": {"max_concurrency": 16}}
ROOM_ARMS: dict[str, dict[str, Any]] = {
    "off, relevance": {},
    "off": POPULARITY,
    "limit 16": {**POPULARITY, **LIMIT},
    "adaptive": ADAPTIVE,
    "adaptive, limit 16": {**ADAPTIVE, **LIMIT},
    **{
        f"adaptive, plan {n}": {
            **POPULARITY,
            "waiting_room": {"mode": "adaptive", "max_batch": n},
        }
        for n in (8, 16)
    },
}
ROUTER_ARMS: dict[str, dict[str, Any]] = {
    "least_loaded": {**POPULARITY, "router": {"policy": "least_loaded"}},
    "cache_aware": POPULARITY,
    "cache_aware, running_tokens 0": {**POPULARITY, "router": {"running_tokens": 0}},
    "cache_aware, running_tokens 2048": {**POPULARITY, "router": {"running_tokens": 2048}},
}
# Request rate as a share of the uncached capacity of one engine; None: 64 closed-loop clients per
# engine.
LOADS: dict[str, float | None] = {"half": 0.5, "full": 1.0, "64 clients": None}


class VirtualTime(selectors.SelectSelector):
    """Selector that advances a virtual clock instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Advance the clock by the timeout; no file is ever ready."""
        assert timeout is not None, "deadlock: no timer is pending"
        self.now += max(0.0, timeout)
        return []


@contextmanager
def virtual_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Make an event loop with a virtual clock the current one."""
    selector = VirtualTime()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    asyncio.set_event_loop(loop)
    try:
        yield loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@dataclass
class Engine:
    """A simulated engine.

    Attributes:
        lanes: prompts computed concurrently; they share the prefill rate.
    """

    lanes: int
    capacity_tokens: int = CAPACITY_TOKENS
    cache: ContextIndex = field(init=False)
    cached_tokens: int = 0
    prompt_tokens: int = 0

    def __post_init__(self) -> None:
        self.cache = ContextIndex(capacity_tokens=self.capacity_tokens)
        self._lanes = asyncio.Semaphore(self.lanes)

    async def prefill(self, documents: Sequence[Document], tokens: Sequence[int]) -> None:
        """Prefill a prompt; the cache is searched when it is scheduled, as in real engines."""
        keys = [document.key for document in documents]
        async with self._lanes:
            cached = self.cache.cached_prefix(keys).cached_tokens
            todo = sum(tokens) - cached
            await asyncio.sleep(todo * self.lanes / PREFILL_TOKENS_PER_S)
            self.cache.insert(keys, tokens)
        self.cached_tokens += cached
        self.prompt_tokens += sum(tokens)


class Run:
    """One arm on one workload under one load."""

    def __init__(
        self,
        workload: Workload,
        arm: dict[str, Any],
        *,
        replicas: int,
        lanes: int,
        capacity_tokens: int = CAPACITY_TOKENS,
    ) -> None:
        backends = [{"url": f"http://e{i}"} for i in range(replicas)]
        limit = arm.get("backend", {})
        settings = Settings(
            backends=[{**each, **limit} for each in backends],  # type: ignore[arg-type]
            **{
                "index": {"capacity_tokens": capacity_tokens},
                **{name: value for name, value in arm.items() if name != "backend"},
            },
        )
        tenants = Tenants(settings)
        self.tenant: Tenant = tenants.get(TenantKey("m", ""))
        self.dispatcher = Dispatcher(settings, backends=Backends.of(settings), tenants=tenants)
        self.engines = {
            b.name: Engine(lanes, capacity_tokens) for b in self.dispatcher.backends.all
        }
        self.tokens = workload.tokens
        self.documents = {
            name: Document(text=f"{name} ".ljust(length * BYTES_PER_TOKEN, "x"), id=str(name))
            for name, length in workload.tokens.items()
        }
        self.lengths = {self.documents[name].key: n for name, n in workload.tokens.items()}
        self.ttft: list[float] = []
        self.responses: list[Response] = []
        self.releases: list[str] = []

    async def request(self, names: Sequence[Any]) -> None:
        """Run one request from its arrival to the end of its response."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        documents = tuple(self.documents[name] for name in names)
        admission = self.dispatcher.admission()
        admission.tenant, admission.leading = self.tenant, Request("why?", documents)
        admission.prompt_tokens = sum(self.tokens[name] for name in names)
        admission.is_stream = True
        await self.dispatcher.enter(admission)
        self.releases.append(admission.release)
        booster = self.tenant.booster(admission.backend.name)
        context = booster.boost("why?", documents, planned=admission.planned)
        lengths = [self.lengths[document.key] for document in context.documents]
        admission.cached_tokens = context.predicted_cached_tokens
        await self.engines[admission.backend.name].prefill(context.documents, lengths)
        self.ttft.append(loop.time() - started)
        self.responses.append(Response(started, loop.time()))
        self.dispatcher.begun(admission, is_stream=True)
        await asyncio.sleep(GENERATE_S)
        admission.close()
        self.dispatcher.update()

    async def open(self, contexts: Sequence[Sequence[Any]], gaps: Sequence[float]) -> None:
        """Send requests, each so many seconds after the one before it."""
        tasks = []
        for context, gap in zip(contexts, gaps, strict=True):
            await asyncio.sleep(gap)
            tasks.append(asyncio.create_task(self.request(context)))
        await asyncio.gather(*tasks)

    async def closed(self, contexts: Sequence[Sequence[Any]], *, clients: int) -> None:
        """Send requests from clients that wait for each response (closed loop)."""
        left = iter(contexts)

        async def client() -> None:
            for context in left:
                await self.request(context)

        await asyncio.gather(*(client() for _ in range(clients)))


def measure(
    workload: Workload,
    arm: dict[str, Any],
    *,
    load: float | None,
    replicas: int = 1,
    lanes: int = 1,
    seed: int = 1,
) -> dict[str, float]:
    """Run one arm; return `hit_rate`, TTFT (`ttft_mean_s`, `ttft_p99_s`), `duration_s` and
    `smallest_share`: prompt tokens of the least loaded engine, relative to an equal share."""
    with virtual_loop() as loop:
        run = Run(workload, arm, replicas=replicas, lanes=lanes)
        if load is None:
            work = run.closed(workload.contexts, clients=64 * replicas)
        else:
            mean = np.mean([sum(workload.tokens[d] for d in c) for c in workload.contexts])
            per_s = load * replicas * PREFILL_TOKENS_PER_S / float(mean)
            gaps = arrival_gaps(len(workload.contexts), per_s=per_s, arrivals="poisson", seed=seed)
            work = run.open(workload.contexts, gaps)
        loop.run_until_complete(work)
        run.dispatcher.close()
        loop.run_until_complete(asyncio.sleep(0))
        duration_s = loop.time()
    engines = run.engines.values()
    cached, prompt = sum(e.cached_tokens for e in engines), sum(e.prompt_tokens for e in engines)
    shares = [e.prompt_tokens / prompt for e in engines]
    return {
        "hit_rate": round(cached / prompt, 4),
        "ttft_mean_s": round(float(np.mean(run.ttft)), 3),
        "ttft_p99_s": round(float(np.percentile(run.ttft, 99)), 3),
        "duration_s": round(duration_s, 1),
        "smallest_share": round(min(shares) * replicas, 3),
    }


def compare(
    arms: dict[str, dict[str, Any]], progress: Callable[[str], None], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Measure all arms on all workloads under all loads."""
    replicas = args.replicas if arms is ROUTER_ARMS else 1
    rows = []
    for workload in args.workload or GENERATORS:
        made = generate(workload, args.requests, seed=args.seed)
        for load, share in LOADS.items():
            for name, arm in arms.items():
                progress(f"{workload}, {load}: {name}")
                figures = measure(
                    made, arm, load=share, replicas=replicas, lanes=args.lanes, seed=args.seed
                )
                rows.append({"workload": workload, "load": load, "arm": name, **figures})
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workload", choices=tuple(GENERATORS), action="append", help="workloads to run"
    )
    parser.add_argument("--requests", type=int, default=1500, help="requests per workload")
    parser.add_argument("--replicas", type=int, default=4, help="engines behind the router")
    parser.add_argument("--lanes", type=int, default=1, help="prompts prefilled concurrently")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("waiting_room", "router"), help="run one part")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    console = Console(stderr=True)
    parts = {"waiting_room": ROOM_ARMS, "router": ROUTER_ARMS}
    with console.status("") as status:
        result = {
            name: compare(arms, status.update, args)
            for name, arms in parts.items()
            if args.only in (None, name)
        }
    if args.json:
        print(json.dumps({"requests": args.requests, "lanes": args.lanes, **result}))
    else:
        for name, rows in result.items():
            show(name, rows)


def show(name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print a table."""
    table = Table(title=name)
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
