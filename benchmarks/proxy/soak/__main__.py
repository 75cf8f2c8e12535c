"""Run the proxy for an hour under mixed traffic and faults, and see what grows.

    python -m benchmarks.proxy.soak --minutes 60 --json

`ragboost serve` is a process between clients on HTTP and two FakeEngine processes that publish
cache events: stateless, named and session conversations, streams, clients that leave, odd requests
of all kinds, floods of events, and every minute one engine is killed and started again. Its bounds
are a fiftieth or less of the defaults, to be reached within minutes. Memory, files, threads and
tasks are sampled, once a minute the entries of all containers of RAGBoost's objects, and
where the memory is: in use by malloc's callers, free but kept by malloc, or of Python's small
objects. Growth is by requests, not by time, so that a busy machine changes nothing: after a third
of the requests, the slope per 10,000 of them is a regression over means of equal spans, with its
95 % interval. A value grows if its slope is above that interval and a small figure, `growth.SMALL`.
Of RSS that is the part in use: what malloc has been given back and keeps has a bound, not a slope.
An error is caused if the request was running when an engine was killed; all others count.
"""

import asyncio
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from subprocess import Popen
from typing import Any, NamedTuple

import httpx
import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.command import make_parser, report, show_rows
from benchmarks.processes import listens, spawn, stop
from benchmarks.proxy.soak.growth import Sample, Slope, slope
from benchmarks.proxy.soak.traffic import Outcome, Traffic
from benchmarks.proxy.soak.watched import read_stages
from scripts.ports import free_port
from scripts.processes import exit_on_sigterm

_RESTART_EVERY_S = 60.0
_DOWN_S = 5.0
_KILL_S = 1.0  # after a kill, running requests may still fail
_JUDGED_REQUESTS = 10_000  # shorter runs end before the bounded maps are full
_COUNTED = 50  # entries; smaller containers are not shown
_FREE = "malloc free, MB"
_MAX_FREE_MB = 64.0  # that malloc may keep; more is fragmentation
_BOUNDS = {
    "RAGBOOST_SESSION__STORE": "sqlite",
    "RAGBOOST_SESSION__MAX_SESSIONS": "50",
    "RAGBOOST_PROXY__MEMORY_BYTES": str(144 * 1024 * 1024),
    "RAGBOOST_INDEX__CAPACITY_TOKENS": "100000",
    "RAGBOOST_PROXY__MAX_BODY_BYTES": str(1024 * 1024),
    "RAGBOOST_PROXY__BODY_TIMEOUT_S": "5",
}
_GAUGES = {
    "tasks": re.compile(r"^ragboost_tasks (\S+)", re.MULTILINE),
    "index nodes": re.compile(r"^ragboost_index_nodes (\S+)", re.MULTILINE),
    "conversations": re.compile(r"^ragboost_sessions (\S+)", re.MULTILINE),
}


@dataclass
class Soak:
    """One run: processes, samples and the times at which an engine was killed."""

    minutes: float
    rate: float
    seed: int
    folder: Path
    ports: list[int] = field(default_factory=lambda: [free_port(), free_port()])
    engines: dict[int, Popen[bytes]] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    containers: list[dict[str, list[int]]] = field(default_factory=list)  # minute by minute
    kills: list[float] = field(default_factory=list)
    num_missed: int = 0  # samples without a response of the proxy

    async def run(self) -> Traffic:
        """Start everything, wait for the end of the traffic, stop everything."""
        try:
            for port in self.ports:
                _wait_for_engine(self._spawn_engine(port), port)
            return await self._run_proxy()
        finally:
            for engine in self.engines.values():
                stop(engine)

    async def _run_proxy(self) -> Traffic:
        port, memory_port = free_port(), free_port()
        environment = {**_BOUNDS, "RAGBOOST_SESSION__PATH": str(self.folder / "sessions.db")}
        backends = [f"--backend=http://127.0.0.1:{engine}" for engine in self.ports]
        program = [sys.executable, "-m", "benchmarks.proxy.soak.watched", str(memory_port)]
        serve = [*program, "serve", "--port", str(port), *backends]
        proxy = spawn(serve, log=self.folder / "proxy.log", env=environment)
        try:
            if not listens(proxy, port):
                raise SystemExit((self.folder / "proxy.log").read_text())
            url = f"http://127.0.0.1:{port}"
            traffic = Traffic(url, rate=self.rate, seed=self.seed)
            started = time.monotonic()
            until = started + self.minutes * 60
            watching = _Watched(proxy.pid, url, memory_port)
            watch = self._watch(watching, traffic, started=started, until=until)
            await asyncio.gather(traffic.run(until), self._restart(until), watch)
            return traffic
        finally:
            stop(proxy)

    def _spawn_engine(self, port: int) -> Popen[bytes]:
        command = [sys.executable, "-m", "benchmarks.fake_engine", str(port), "--floods"]
        self.engines[port] = spawn(command, log=Path(os.devnull))
        return self.engines[port]

    async def _restart(self, until: float) -> None:
        """Kill one engine after the other, and start it again."""
        for port in cycle(self.ports):
            if time.monotonic() + _RESTART_EVERY_S + _DOWN_S >= until:
                return
            await asyncio.sleep(_RESTART_EVERY_S)
            self.kills.append(time.monotonic())
            self.engines[port].kill()
            await asyncio.to_thread(self.engines[port].wait)
            await asyncio.sleep(_DOWN_S)
            await asyncio.to_thread(_wait_for_engine, self._spawn_engine(port), port)

    async def _watch(
        self, proxy: "_Watched", traffic: Traffic, *, started: float, until: float
    ) -> None:
        every_s = min(5.0, self.minutes * 60 / 150)
        with _progress() as progress:
            task = progress.add_task("minutes", total=self.minutes * 60)
            while (now := time.monotonic()) < until:
                try:
                    values = await asyncio.to_thread(_read_values, proxy)
                    self.samples.append(Sample(traffic.num_answered, values))
                    if now - started >= 60 * len(self.containers):
                        found = await asyncio.to_thread(
                            read_stages, proxy.memory_port, "containers"
                        )
                        self.containers.append(found)
                except (OSError, httpx.HTTPError):
                    self.num_missed += 1
                progress.update(task, completed=now - started)
                await asyncio.sleep(every_s)


def _wait_for_engine(engine: Popen[bytes], port: int) -> None:
    if not listens(engine, port):
        raise SystemExit("an engine did not start")


class _Watched(NamedTuple):
    """The proxy's process, and where it tells about itself."""

    pid: int
    url: str
    memory_port: int


def _read_values(proxy: _Watched) -> dict[str, float]:
    process = psutil.Process(proxy.pid)
    with process.oneshot():
        values = {
            "RSS, MB": process.memory_info().rss / 1e6,
            "open files": float(process.num_fds()),
            "threads": float(process.num_threads()),
        }
    values |= read_stages(proxy.memory_port)
    values["RSS in use, MB"] = values["RSS, MB"] - values.get(_FREE, 0.0)
    values["threads"] -= values.get("threads of the pool", 0.0)  # which has a bound
    text = httpx.get(f"{proxy.url}/metrics", timeout=30).text
    for name, pattern in _GAUGES.items():
        if found := pattern.search(text):
            values[name] = float(found[1])
    values["metric lines"] = float(text.count("\n"))
    return values


def is_caused(outcome: Outcome, kills: Sequence[float]) -> bool:
    """Return True for a request that was running when an engine was killed."""
    return any(outcome.started <= kill + _KILL_S and kill <= outcome.ended for kill in kills)


def main() -> None:
    """Run and print; exit with 1 after an error that was not caused, or if something grew."""
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="length of the run")
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second")
    parser.add_argument("--seed", type=int, default=0, help="seed of the clients")
    options = parser.parse_args()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(options.minutes, options.rate, options.seed, Path(folder))
        traffic = asyncio.run(soak.run())
    result = _result(soak, traffic)
    report(result, options, _show)
    has_grown = result["grown"] and soak.samples[-1].requests >= _JUDGED_REQUESTS
    sys.exit(1 if result["errors"] or has_grown or result["over_bound"] else 0)


def _result(soak: Soak, traffic: Traffic) -> dict[str, Any]:
    failed = [outcome for outcome in traffic.outcomes if outcome.problem]
    errors = [outcome for outcome in failed if not is_caused(outcome, soak.kills)]
    times = sorted(outcome.ended - outcome.started for outcome in traffic.outcomes)
    names = soak.samples[0].values
    slopes = {name: slope(soak.samples, name) for name in names}
    return {
        "minutes": soak.minutes,
        "rate": soak.rate,
        "requests": traffic.counts.total(),
        "kinds": dict(traffic.counts),
        "engine_kills": len(soak.kills),
        "missed_samples": soak.num_missed,
        "not_sent": traffic.num_not_sent,
        "caused_errors": len(failed) - len(errors),
        "errors": len(errors),
        "first_errors": [outcome.problem for outcome in errors[:5]],
        "p50_ms": round(1e3 * times[len(times) // 2], 1),
        "p99_ms": round(1e3 * times[len(times) * 99 // 100], 1),
        "slopes": {name: asdict(each) for name, each in slopes.items()},
        "grown": [name for name, each in slopes.items() if each.grows],
        "rss_mb_by_thousand": _by_thousand(soak.samples, "RSS, MB"),
        "containers": _containers(soak.containers),
        "over_bound": _over_bound(soak, slopes),
    }


def _over_bound(soak: Soak, slopes: Mapping[str, Slope]) -> list[str]:
    found = [row for sample in soak.containers for row in sample.items()]
    over = {name for name, (count, most) in found if 0 < most < count}
    if _FREE in slopes and slopes[_FREE].highest > _MAX_FREE_MB:
        over.add(_FREE)
    return sorted(over)


def _by_thousand(samples: Sequence[Sample], name: str) -> list[float]:
    """Return the mean of each thousand requests."""
    thousands: dict[int, list[float]] = {}
    for sample in samples:
        thousands.setdefault(sample.requests // 1000, []).append(sample.values[name])
    return [round(statistics.fmean(values), 1) for values in thousands.values()]


def _containers(samples: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, Any]:
    """Return the bound of each container, and its entries minute by minute, the fullest first."""
    names = {name for found in samples for name in found}
    rows: dict[str, dict[str, Any]] = {
        name: {
            "bound": max(found.get(name, (0, 0))[1] for found in samples),
            "entries": [found.get(name, (0, 0))[0] for found in samples],
        }
        for name in names
    }
    fullest = sorted(rows, key=lambda name: (-max(rows[name]["entries"]), name))
    return {
        name: rows[name]
        for name in fullest
        if max(rows[name]["entries"]) >= _COUNTED or name.startswith("threads")
    }


def _show(result: dict[str, Any]) -> None:
    title = f"{result['requests']:,} requests in {result['minutes']:g} minutes"
    rows = [{"value": name, **row} for name, row in result["slopes"].items()]
    show_rows(rows, title)
    containers = result["containers"].items()
    if kept := [{"entries of": name, **_ends(**row)} for name, row in containers]:
        show_rows(kept)
    print(
        f"{result['engine_kills']} engines killed, {result['caused_errors']} requests failed with "
        f"them, {result['errors']} other errors; "
        f"p50 {result['p50_ms']} ms, p99 {result['p99_ms']} ms",
        *result["first_errors"],
        sep="\n",
    )


def _ends(*, bound: int, entries: Sequence[int]) -> dict[str, int]:
    middle = entries[len(entries) // 2]
    return {"bound": bound, "first": entries[0], "middle": middle, "last": entries[-1]}


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))


if __name__ == "__main__":
    main()
