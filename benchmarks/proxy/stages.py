"""Break down the proxy's processor time per request by stage, with one client.

    python -m benchmarks.proxy.stages --json
    python -m benchmarks.proxy.stages --body 45k --blocks 5

The proxy runs with timers around the functions of each stage; time in a nested stage counts for the
nested stage only. Two reference servers run next to it: `server`, the HTTP server alone, and
`relay`, the HTTP server with the proxy's backend client. Figures are microseconds per request.
"""

import argparse
import asyncio
import importlib
import json
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.command import make_parser, report
from benchmarks.proxy.rounds import BODIES, requests_for, run_round
from benchmarks.proxy.targets import Target, first_cpu, last_cpu, listens, spawn, stop
from ragboost.config import Settings
from ragboost.proxy.server import listen, make_server, serve
from ragboost.proxy.upstream.backend import Backend
from scripts.ports import free_port
from scripts.processes import exit_on_sigterm

# Functions of each stage as `module:name`, looked up in the module that calls them.
STAGES = {
    "decode JSON": ["rewriting.json_body:JsonBody.__init__"],
    "find documents": ["rewriting.parsed_request:find_format"],
    "make and hash documents": [
        "formats.documents:DocumentPool.of",
        "formats.documents:DocumentPool.all_of",
    ],
    "hash messages": [
        "rewriting.parsed_request:chain_links",
    ],
    "recognise and remember the conversation": [
        "rewriting.history:History.known",
        "rewriting.history:History.add",
    ],
    "admit and route": ["proxy.routing.dispatcher:Dispatcher.admit"],
    "de-duplicate, count tokens": ["booster.booster:Booster._retrieve"],
    "search the index, order": ["booster.booster:Booster._order"],
    "label, hint, check": ["booster.booster:compose"],
    "record in the index": ["index.context_index:ContextIndex.record_leading"],
    "write documents": [
        "formats.messages:Messages.replace",
        "formats.ragboost_object:RagboostObject.replace",
    ],
    "encode JSON": [
        "rewriting.json_body:JsonBody.encode",
        "rewriting.json_body:JsonBody.encode_bytes",
    ],
    "predict and follow": [
        "cache_sync.tracked_request:TrackedRequest.__init__",
        "cache_sync.tracked_request:TrackedRequest.report_end",
    ],
    "all else of rewriting": ["rewriting.rewriter:Rewriting.boost"],
    "all else of preparing": ["proxy.pipeline:BoostPipeline.prepare"],
    "read usage and answer": [
        "proxy.upstream.response_reader:ResponseReader.feed",
        "proxy.upstream.response_reader:ResponseReader.finish",
    ],
    "metrics and recent requests": [
        "proxy.observability.metrics:Metrics.count_request",
        "proxy.observability.metrics:Metrics.done",
        "proxy.observability.metrics:Metrics.observe_wait",
        "proxy.pipeline:BoostPipeline._count",
        "proxy.cache_learning:CacheLearning.done",
        "proxy.observability.recent_requests:RecentRequests.done",
    ],
}
_RELAYED = ("host", "content-length")


class Stopwatches:
    """Sum the time of each stage without its nested stages. Supports one request at a time."""

    def __init__(self) -> None:
        self.ns: dict[str, int] = defaultdict(int)
        self._inside = [0]

    def put(self, stage: str, place: str) -> None:
        """Time a function, given as `module:name`, as part of a stage."""
        owner, name = find(place)
        function = getattr(owner, name)
        is_async = asyncio.iscoroutinefunction(function)
        around = self._around_async if is_async else self._around
        setattr(owner, name, around(stage, function))

    def _around(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*args: Any, **named: Any) -> Any:
            started = self._start()
            try:
                return function(*args, **named)
            finally:
                self._stop(stage, started)

        return measured

    def _around_async(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        async def measured(*args: Any, **named: Any) -> Any:
            started = self._start()
            try:
                return await function(*args, **named)
            finally:
                self._stop(stage, started)

        return measured

    def _start(self) -> int:
        self._inside.append(0)
        return time.perf_counter_ns()

    def _stop(self, stage: str, started: int) -> None:
        took = time.perf_counter_ns() - started
        self.ns[stage] += took - self._inside.pop()
        self._inside[-1] += took


def find(place: str) -> tuple[Any, str]:
    """Return the module or class that holds the function `module:name`, and its name there."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(f"ragboost.{module}")
    for each in owners:
        owner = getattr(owner, each)
    return owner, name


def main() -> None:
    """Measure and print, or run as one of the servers (`server` as first argument)."""
    if sys.argv[1:2] == ["server"]:
        _serve(*sys.argv[2:])
        return
    parser = make_parser(__doc__)
    parser.add_argument("--body", action="append", choices=tuple(BODIES), help="bodies to send")
    parser.add_argument("--requests", type=int, default=40, help="requests per block")
    parser.add_argument("--blocks", type=int, default=15, help="measured blocks per server")
    args = parser.parse_args()
    exit_on_sigterm()
    result = {body: _measure(body, args) for body in args.body or ("1k", "45k", "400k")}
    report(result, args, _print_table)


def _measure(body: str, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return microseconds per stage: medians over blocks, interleaved between servers."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        port = free_port()
        backend = spawn(
            [sys.executable, "-m", "benchmarks.proxy.mock_backend", str(port)],
            log=Path(folder) / "backend",
            cpu=last_cpu(),
        )
        stack.callback(stop, backend)
        listens(backend, port)
        targets = list(_targets(stack, Path(folder), f"http://127.0.0.1:{port}"))
        blocks: dict[str, list[dict[str, float]]] = defaultdict(list)
        for seed in range(-1, args.blocks):
            for target in targets:
                path = Path(folder) / target.name
                requests = requests_for(target, body, args.requests, seed=seed)
                before = _read(path)
                measured = uvloop.run(run_round(target, requests, 1))
                time.sleep(0.15)  # the server writes its stage times ten times a second
                after = _read(path)
                stages = {
                    name: (after[name] - before.get(name, 0)) / (args.requests + 1) / 1e3
                    for name in after
                }
                if seed >= 0:
                    blocks[target.name].append({"total": measured.cpu_us, **stages})
    return {
        name: {
            stage: round(statistics.median(block.get(stage, 0.0) for block in measured), 1)
            for stage in ("total", *STAGES)
            if stage in measured[-1]
        }
        for name, measured in blocks.items()
    }


def _targets(stack: ExitStack, folder: Path, backend: str) -> Iterator[Target]:
    for name in ("server", "relay", "ragboost", "ragboost-object"):
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.proxy.stages", "server"]
        process = spawn(
            [*command, name, str(port), backend, str(folder / name)],
            log=folder / "log",
            cpu=first_cpu(),
        )
        stack.callback(stop, process)
        if not listens(process, port):
            raise SystemExit(f"{name} did not start")
        yield Target(name, process, port, in_object=name == "ragboost-object")


def _serve(name: str, port: str, backend: str, output: str) -> None:
    """Run one of the servers until it is terminated."""
    settings = Settings(backend={"url": backend}, proxy={"port": int(port)})  # type: ignore[arg-type]
    if name in ("server", "relay"):
        app = _Floor(Backend(settings.backend) if name == "relay" else None)
        make_server(app, settings.proxy).run(sockets=[listen(settings.proxy)])  # type: ignore[arg-type]
        return
    watches = Stopwatches()
    for stage, places in STAGES.items():
        for place in places:
            watches.put(stage, place)
    writer = threading.Thread(target=_write_times, args=(watches, Path(output)), daemon=True)
    writer.start()
    serve(settings)


def _write_times(watches: Stopwatches, output: Path) -> None:
    while True:
        time.sleep(0.1)
        new = output.with_suffix(".new")
        new.write_text(json.dumps(watches.ns.copy()))
        new.rename(output)


def _read(path: Path) -> dict[str, int]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


class _Floor:
    """Minimal ASGI app: responds by itself, or relays to the backend."""

    def __init__(self, backend: Backend | None) -> None:
        self._backend = backend

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})
            return
        body = (await receive())["body"]
        headers, data = [(b"content-length", b"2"), (b"x-ragboost-documents", b"14")], b"{}"
        if self._backend is not None:
            sent = [each for each in scope["headers"] if each[0].decode() not in _RELAYED]
            response = await self._backend.request("POST", scope["path"], headers=sent, body=body)
            data = await response.read()
            headers = [*response.headers, headers[1]]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data, "more_body": False})


def _print_table(result: dict[str, dict[str, dict[str, float]]]) -> None:
    bodies = list(result)
    table = Table(
        "us per request", *(f"{body} {kind}" for body in bodies for kind in ("tags", "object"))
    )
    names = ("ragboost", "ragboost-object")
    for stage in ("total", *STAGES):
        cells = [result[body][name].get(stage, 0.0) for body in bodies for name in names]
        table.add_row(stage, *(f"{cell:,.0f}" for cell in cells))
    for floor in ("server", "relay"):
        cells = [result[body][floor]["total"] for body in bodies for _ in names]
        table.add_row(f"{floor} alone", *(f"{cell:,.0f}" for cell in cells))
    Console().print(table)


if __name__ == "__main__":
    main()
