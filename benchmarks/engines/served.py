"""Serve one engine behind a proxy per mode, and measure their responses.

The engines run side by side and get small groups of requests alternately, so that noise affects all
modes alike. Knows request bodies. Does not know workloads.
"""

import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol

import httpx

from ragboost.config import Settings
from ragboost.proxy.app import create_app
from ragboost.proxy.serving import serve_in_thread
from scripts.http_client import SOURCES, Answer, Body, ask
from tests.engines.servers import EngineServer, Kind, Shape

COUNTERS = re.compile(
    r"^(?:vllm|ragboost_engine|sglang)[:_](prefix_cache_hits|prefix_cache_queries|"
    r"cached_tokens|prompt_tokens)(?:_total)?(?:\{[^}]*\})? ([0-9.e+]+)$",
    re.MULTILINE,
)
# Where a first token's time goes, by the metrics of the engine and of the proxy: sums and counts.
TIMES = re.compile(
    r"^(?:vllm|sglang|ragboost_engine|ragboost)[:_](time_to_first_token|request_queue_time|"
    r"queue_time|request_prefill_time|overhead|queue_wait)_seconds_(sum|count)(?:\{[^}]*\})? "
    r"([0-9.e+-]+)$",
    re.MULTILINE,
)
_SETTLE_S = 0.5  # engines update their metrics after a step


class CachingServer(Protocol):
    """An engine, real or simulated."""

    def clear_cache(self) -> None: ...


class Counted(NamedTuple):
    """Prompt tokens as counted by the engine's own metrics."""

    cached: float
    prompt: float

    def since(self, earlier: "Counted") -> "Counted":
        return Counted(self.cached - earlier.cached, self.prompt - earlier.prompt)


class Served:
    """An engine behind its own proxy."""

    def __init__(self, server: EngineServer, client: httpx.Client) -> None:
        self.answers: list[Answer] = []  # to the requests of `measure`
        self._server = server
        self._client = client
        self._excluded: list[Counted] = []
        self._start, self._cpu_start_s = Counted(0, 0), 0.0
        self._times: dict[str, float] = {}  # at the start

    @property
    def engine_url(self) -> str:
        """The engine behind the proxy."""
        return self._server.url

    def reset(self) -> None:
        """Clear the engine's cache and restart counting."""
        empty_cache(self._server)
        self.restart_counting()

    def restart_counting(self) -> None:
        self.answers.clear()
        self._excluded.clear()
        self._start, self._cpu_start_s = self.counters(), self._server.cpu_seconds()
        self._times = self._read_times()

    def measure(self, path: str, bodies: Sequence[Body]) -> list[Answer]:
        """Send measured requests concurrently, in this order."""
        with ThreadPoolExecutor(len(bodies)) as pool:
            futures = [pool.submit(self.send, path, body) for body in bodies]
            answers = [future.result() for future in futures]
        self.answers += answers
        return answers

    def prepare(self, path: str, body: Body) -> None:
        """Send an unmeasured request that prepares the cache."""
        before = self.counters()
        self.send(path, body)
        self._excluded.append(self.counters().since(before))

    def send(self, path: str, body: Body) -> Answer:
        """Send one streaming request."""
        return ask(self._client, path, {"model": "tiny", "max_tokens": 1, **body})

    def counters(self) -> Counted:
        """Return the engine's counters since its start."""
        time.sleep(_SETTLE_S)
        found: dict[str, float] = {}
        for name, value in COUNTERS.findall(self._server.get("/metrics")):
            found[name] = found.get(name, 0.0) + float(value)
        if "prefix_cache_queries" in found:
            return Counted(found.get("prefix_cache_hits", 0.0), found["prefix_cache_queries"])
        return Counted(found.get("cached_tokens", 0.0), found.get("prompt_tokens", 0.0))

    def _read_times(self) -> dict[str, float]:
        found: dict[str, float] = {}
        pages = {"engine": self._server.get("/metrics"), "proxy": self._client.get("/metrics").text}
        for where, page in pages.items():
            for name, kind, value in TIMES.findall(page):
                key = f"{where} {name} {kind}"
                found[key] = found.get(key, 0.0) + float(value)
        return found

    def waterfall_ms(self) -> dict[str, float]:
        """Return the mean time of each part of a first token, prepared requests included."""
        now = self._read_times()
        since = {name: value - self._times.get(name, 0.0) for name, value in now.items()}
        num = since.get("engine time_to_first_token count") or max(len(self.answers), 1)
        return {
            name.removesuffix(" sum"): round(total / num * 1000, 2)
            for name, total in sorted(since.items())
            if name.endswith(" sum")
        }

    def summary(self) -> dict[str, Any]:
        """Return the figures over all samples; the hit rate is from the engine's own metrics."""
        counted = self.counters().since(self._start)
        for excluded in self._excluded:
            counted = counted.since(excluded)
        ttft = [answer.ttft_s * 1000 for answer in self.answers]
        quantiles = statistics.quantiles(ttft, n=20, method="inclusive")
        tokens = {name: sum(each.sources[name] for each in self.answers) for name in SOURCES}
        computed = tokens["computed"] + tokens["recomputed"]
        later = [each.sources for each in self.answers[len(self.answers) // 2 :]]
        later_tokens = sum(sum(sources.values()) for sources in later)
        return {
            "requests": len(ttft),
            "hit_rate": round(counted.cached / max(counted.prompt, 1), 4),
            "steady_hit_rate": round(
                sum(sources["exact"] for sources in later) / max(later_tokens, 1), 4
            ),
            "steady_prefill_tokens": sum(
                sources["computed"] + sources["recomputed"] for sources in later
            ),
            "ttft_p50_ms": round(statistics.median(ttft), 1),
            "ttft_p95_ms": round(quantiles[-1], 1),
            "ttft_mean_ms": round(statistics.fmean(ttft), 1),
            "ttft_quartiles_ms": [round(quantiles[i], 1) for i in (4, 9, 14)],
            "waterfall_ms": self.waterfall_ms(),
            "prompt_tokens": sum(tokens.values()),
            "prefill_tokens": computed,
            "tokens": tokens,
            # with what was not measured
            "engine_cpu_s": round(self._server.cpu_seconds() - self._cpu_start_s, 2),
        }


class Mode(NamedTuple):
    """One way to serve."""

    settings: Mapping[str, Any] = {}  # sections of the proxy's settings
    chunks: Mapping[str, Any] | None = None  # settings of chunk reuse; None: the engine as it is


@contextmanager
def start_all(servers: Sequence[EngineServer]) -> Iterator[None]:
    """Start servers side by side; stop them on exit."""
    with ExitStack() as stack:
        for server in servers:
            stack.push(server)  # stopped on exit even if its start fails
        with ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(EngineServer.start, servers))
        yield


@contextmanager
def serve(
    modes: Mapping[str, Mode],
    *,
    engine: Kind,
    cache_tokens: int,
    max_model_len: int,
    shape: Shape = "tiny",
) -> Iterator[dict[str, Served]]:
    """Start an engine with an empty cache behind a proxy for each mode; stop them on exit."""
    with ExitStack() as stack:
        servers = [
            EngineServer(
                engine,
                cache_tokens=cache_tokens,
                max_model_len=max_model_len,
                shape=shape,
                chunks=mode.chunks,
            )
            for mode in modes.values()
        ]
        stack.enter_context(start_all(servers))
        yield {
            name: stack.enter_context(_behind_proxy(server, mode))
            for (name, mode), server in zip(modes.items(), servers, strict=True)
        }


@contextmanager
def _behind_proxy(server: EngineServer, mode: Mode) -> Iterator[Served]:
    backend = {**mode.settings.get("backend", {}), "url": server.url}
    settings = {**mode.settings, "backend": backend}
    with (
        proxied([server], settings, reuses=mode.chunks is not None) as url,
        httpx.Client(base_url=url, timeout=600) as client,
    ):
        served = Served(server, client)
        for prompt in ("Warm up the path of a long request. " * 100, "And of a short one."):
            served.send("/v1/completions", {"prompt": prompt})
        served.reset()
        yield served


@contextmanager
def proxied(
    servers: Sequence[CachingServer], settings: Mapping[str, Any], *, reuses: bool = False
) -> Iterator[str]:
    """Empty the caches of engines and start a proxy, which the settings put in front of them; yield
    its URL once it follows all caches, and knows that chunks are reused if they are."""
    app = create_app(Settings.model_validate(settings))
    with serve_in_thread(app) as url:
        for server in servers:
            empty_cache(server)
        end = time.monotonic() + 30
        followers = app.state.cache_sync.followers.values()
        while not all(follower.is_exact for follower in followers) or (
            reuses and not app.state.engines.is_supported
        ):
            if time.monotonic() > end:
                raise RuntimeError("the proxy does not follow the engine after 30 s")
            time.sleep(0.05)
        yield url


def empty_cache(server: CachingServer) -> None:
    """Clear the prefix cache of an engine, which says so to those who follow it."""
    server.clear_cache()
    if isinstance(server, EngineServer):
        # NOTE: vLLM publishes the cleared cache with its next step only.
        server.complete([7] * 4, "one more step")
