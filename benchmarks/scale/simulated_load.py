"""Simulate requests in front of engines in virtual time, with the product's own parts.

The proxy's own dispatcher, router, waiting room and Boosters run against `VirtualEngine`s, so
results do not depend on the machine. An engine has an LRU prefix cache, prefills uncached tokens at
a constant rate, in order of arrival, and then decodes. Times are virtual seconds.
"""

import argparse
import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from benchmarks.datasets.retrieval import load_data
from benchmarks.datasets.workloads import GENERATORS, Workload, generate
from benchmarks.scale.load import (
    ARMS,
    LOADS,
    SHOWN,
    TTFT_BOUND,
    WARM_UP,
    Arrivals,
    Response,
    arrival_gaps,
    compare_rows,
    load_figures,
)
from ragboost.booster.tenants import Tenant, TenantKey, Tenants
from ragboost.config import Settings
from ragboost.ordering import plan_batch
from ragboost.proxy.routing.admission import RoutingRequest
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.upstream.backends import Backends
from ragboost.types import Document, Request
from tests.fakes.virtual_time import (
    CAPACITY_TOKENS,
    PREFILL_TOKENS_PER_S,
    VirtualEngine,
    virtual_loop,
)

GENERATE_S = 1.5
BYTES_PER_TOKEN = 4


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
            backends=[{**each, **limit} for each in backends],
            **{
                "index": {"capacity_tokens": capacity_tokens},
                **{name: value for name, value in arm.items() if name != "backend"},
            },
        )
        tenants = Tenants(settings)
        self.tenant: Tenant = tenants.get(TenantKey("m", ""))
        self.dispatcher = Dispatcher(settings, backends=Backends.of(settings), tenants=tenants)
        self.engines = {
            b.name: VirtualEngine(lanes, capacity_tokens) for b in self.dispatcher.backends.all
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
        request = RoutingRequest(
            tenant=self.tenant,
            find_leading=lambda: Request("why?", documents),
            prompt_tokens=sum(self.tokens[name] for name in names),
            is_stream=True,
        )
        admission = self.dispatcher.admission(request)
        await self.dispatcher.enter(admission)
        self.releases.append(admission.release)
        booster = self.tenant.booster(admission.backend.name)
        context = booster.boost("why?", documents, planned=admission.planned)
        lengths = [self.lengths[document.key] for document in context.documents]
        admission.expect(context.predicted_cached_tokens)
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


class Model(NamedTuple):
    """A simulated setup."""

    workload: Workload
    capacity_tokens: int = 100_000
    lanes: int = 1  # prompts computed concurrently, which share the rate
    replicas: int = 1
    clients: int = 32  # per engine, for measuring saturation
    seed: int = 1  # of the arrivals

    def run(self, arm: Mapping[str, Any]) -> Run:
        """Return a run of an arm, which has not begun."""
        return Run(
            self.workload,
            dict(arm),
            replicas=self.replicas,
            lanes=self.lanes,
            capacity_tokens=self.capacity_tokens,
        )

    @property
    def mean_tokens(self) -> float:
        """Length of an average prompt."""
        tokens = self.workload.tokens
        return float(np.mean([sum(tokens[d] for d in c) for c in self.workload.contexts]))


def saturation(model: Model) -> float:
    """Return the plain requests per second that the engines complete for waiting clients."""
    with virtual_loop() as loop:
        run = model.run(ARMS["plain"])
        work = run.closed(model.workload.contexts, clients=model.clients * model.replicas)
        loop.run_until_complete(work)
        run.dispatcher.close()
        loop.run_until_complete(asyncio.sleep(0))
        return len(model.workload.contexts) / run.responses[-1].first_token


def simulate_load(
    model: Model, arm: str, *, per_s: float, arrivals: Arrivals = "poisson"
) -> dict[str, float]:
    """Run one arm under one load; return `hit_rate`, `held_share` and `load_figures`."""
    contexts = model.workload.contexts
    if arm == "planned":
        plan = plan_batch(contexts, model.workload.tokens)
        contexts = [[contexts[i][j] for j in plan.permutations[i]] for i in plan.release_order]
    idle_s = 2 * model.mean_tokens / PREFILL_TOKENS_PER_S + 2
    gaps = arrival_gaps(len(contexts), per_s=per_s, arrivals=arrivals, seed=model.seed)
    gaps[:WARM_UP] = [idle_s] * WARM_UP
    with virtual_loop() as loop:
        run = model.run(ARMS[arm])
        loop.run_until_complete(run.open(contexts, gaps))
        run.dispatcher.close()
        loop.run_until_complete(asyncio.sleep(0))
    engines = run.engines.values()
    measured = sorted(run.responses)[WARM_UP:]
    bound = TTFT_BOUND * model.mean_tokens / PREFILL_TOKENS_PER_S
    return {
        "hit_rate": round(
            sum(e.cached_tokens for e in engines) / sum(e.prompt_tokens for e in engines), 4
        ),
        "held_share": round(sum(how != "at_once" for how in run.releases) / len(run.releases), 4),
        **load_figures(measured, ttft_bound_s=bound),
    }


def sweep(
    model: Model,
    names: Sequence[str],
    *,
    loads: Sequence[float],
    processes: Sequence[Arrivals],
    progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Simulate all arms under all loads."""
    full = saturation(model)
    rows = []
    for arrivals in processes:
        for load in loads:
            for name in names:
                progress(f"{model.workload.name}, {arrivals}, load {load:g}: {name}")
                figures = simulate_load(model, name, per_s=load * full, arrivals=arrivals)
                rows.append({"arrivals": arrivals, "load": load, "arm": name, **figures})
    return rows


def simulate(options: argparse.Namespace) -> dict[str, Any]:
    """Simulate the workloads of the command line; each result has the rows of one of them."""
    if options.data:
        data = load_data(options.data, retriever=options.retriever or "dense", k=options.k or 15)
        made = [Workload(data.name, data.contexts[: options.requests], data.tokens)]
    else:
        names = options.workload or list(GENERATORS)
        made = [
            generate(name, options.requests, k=options.k or 15, seed=options.seed) for name in names
        ]
    results = []
    with Console(stderr=True).status("") as status:
        for workload in made:
            model = Model(
                workload,
                capacity_tokens=options.cache_tokens,
                lanes=options.lanes,
                replicas=options.replicas,
                clients=options.saturation_clients,
                seed=options.seed,
            )
            rows = sweep(
                model,
                options.arm or SHOWN,
                loads=options.load or LOADS,
                processes=options.arrivals or ("poisson", "bursts"),
                progress=status.update,
            )
            results.append({"workload": workload.name, "rows": rows, **compare_rows(rows)})
    names = ("requests", "k", "cache_tokens", "lanes", "replicas", "saturation_clients", "seed")
    shape = {name: getattr(options, name) for name in names}
    return {"simulation": True, **shape, "results": results}
