"""Break parts of a cluster in the middle of its traffic, and count what that costs.

    python -m benchmarks.scale.faults --json

Two FakeEngine processes, two replicas of `ragboost serve`, Redis, and nginx or HAProxy; where none
is installed, clients ask the replicas in turn. A fixed number of conversations is always going on;
their clients repeat a request that fails, as OpenAI's clients do. For every fault: turns before it,
turns while it lasts, turns after it.

The engines write down each prompt. Every prompt must have all documents of its turn once, its
question once, and nothing that only another conversation has: else a turn is `lost` (also: never
answered), `doubled` or `crossed`. `recovered_turns` and `recovered_s` say when the hit rate of
`WINDOW` turns is back at 95 % of what it was before, counted from the repair. Counts are valid on a
busy machine, seconds are not.
"""

import asyncio
import contextlib
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from benchmarks.command import make_parser, report, show_rows
from ragboost.types import Document
from scripts.cluster import BALANCERS, Cluster, ClusterProcess, installed_balancer
from scripts.cluster_traffic import ClusterClient, Talk, Turn, hit_rate, num_moved

WINDOW = 60
_BACK = 0.95
_MAX_FAULT_S = 10.0
_TURNS = 5
_AT_ONCE = 8
_SHARED = 60  # documents that all conversations retrieve
_FOUND = 5
_LAST = re.compile(r"Question (\d+) of (talk-\d+)\?")
_PRIVATE = re.compile(r"Private to (talk-\d+)\.")

Act = Callable[[Cluster], Awaitable[None]]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--before", type=int, default=240, help="turns before each fault")
    parser.add_argument("--during", type=int, default=80, help="turns until it is repaired")
    parser.add_argument("--after", type=int, default=240, help="turns after it, at most")
    parser.add_argument("--only", nargs="*", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--balancer", choices=[*BALANCERS, "none"], default=installed_balancer())
    args = parser.parse_args()
    balancer = None if args.balancer == "none" else args.balancer
    sizes = (args.before, args.during, args.after)
    rows = [run(name, balancer=balancer, sizes=sizes) for name in args.only]
    result = {"balancer": balancer or "none", "window": WINDOW, "faults": rows}
    report(result, args, _show)


def _killed(part: Callable[[Cluster], ClusterProcess]) -> tuple[Act, Act]:
    async def break_it(cluster: Cluster) -> None:
        await asyncio.to_thread(part(cluster).kill)

    async def repair(cluster: Cluster) -> None:
        part(cluster).start()
        await asyncio.to_thread(part(cluster).wait)

    return break_it, repair


def _silent(part: Callable[[Cluster], ClusterProcess]) -> tuple[Act, Act]:
    """Suspend a part: connections stay open and nothing is answered, as behind a lost network."""

    def process(cluster: Cluster) -> psutil.Process:
        started = part(cluster).process
        assert started is not None, "never started"
        return psutil.Process(started.pid)

    async def break_it(cluster: Cluster) -> None:
        process(cluster).suspend()

    async def repair(cluster: Cluster) -> None:
        process(cluster).resume()

    return break_it, repair


FAULTS: Mapping[str, tuple[Act, Act]] = {
    "replica killed": _killed(lambda cluster: cluster.replicas[0]),
    "Redis killed": _killed(lambda cluster: cluster.redis),
    "engine killed": _killed(lambda cluster: cluster.engines[0]),
    "Redis silent": _silent(lambda cluster: cluster.redis),
}


def run(name: str, *, balancer: str | None, sizes: tuple[int, int, int]) -> dict[str, Any]:
    """Start a cluster, break one part of it and repair it; return the figures."""
    Console(stderr=True).print(f"{name} ...")
    folder = Path(tempfile.mkdtemp(prefix="ragboost-faults-"))

    def engine(number: int, port: int) -> Sequence[str]:
        path = str(folder / f"{number}.jsonl")
        return [sys.executable, "-m", "benchmarks.fake_engine", str(port), "--prompts", path]

    env = {"RAGBOOST_TOKENS__ASK_BACKEND": "false", "RAGBOOST_INDEX__CAPACITY_TOKENS": "60000"}
    try:
        with Cluster(engine, balancer=balancer, replica_env=env) as cluster:
            traffic = _Traffic(cluster.urls)
            marks = asyncio.run(_break(cluster, traffic, FAULTS[name], sizes))
        prompts = [
            json.loads(line)
            for path in sorted(folder.glob("*.jsonl"))
            for line in path.read_text("utf-8").splitlines()
        ]
        return {"fault": name, **_figures(traffic, marks, prompts)}
    finally:
        shutil.rmtree(folder)


class _Traffic:
    """Conversations without end, `_AT_ONCE` at a time."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.talks: dict[str, Talk] = {}
        self.client = ClusterClient(urls, model="m")
        self._rng = random.Random(1)
        words = [f"word{at}" for at in range(300)]
        self._shared = [
            Document(f"Shared {at}. " + " ".join(self._rng.choices(words, k=60)), id=f"s{at}")
            for at in range(_SHARED)
        ]
        self._is_over = False

    async def run(self) -> None:
        """Hold conversations until `stop`."""
        async with self.client:
            await asyncio.gather(*[self._hold() for _ in range(_AT_ONCE)])

    def stop(self) -> None:
        """Let the conversations in progress end, and begin no more."""
        self._is_over = True

    async def _hold(self) -> None:
        while not self._is_over:
            talk = self._next()
            self.talks[talk.name] = talk
            await self.client.converse(talk)

    def _next(self) -> Talk:
        name = f"talk-{len(self.talks)}"
        turns = []
        for number in range(_TURNS):
            picked = {int(_SHARED * self._rng.random() ** 3) for _ in range(_FOUND)}
            own = Document(f"Private to {name}. " + f"{name}-{number} " * 30, id=f"{name}-{number}")
            documents = [*[self._shared[at] for at in picked], own]
            turns.append((f"Question {number} of {name}?", documents))
        return Talk(name, turns, is_session=len(self.talks) % 2 == 1)


async def _break(
    cluster: Cluster, traffic: _Traffic, fault: tuple[Act, Act], sizes: tuple[int, int, int]
) -> tuple[int, int, float]:
    """Return the turns answered before the fault and before its repair, and the repair's time."""
    break_it, repair = fault
    before, during, after = sizes
    turns = traffic.client.turns
    running = asyncio.create_task(traffic.run())
    await traffic.client.until(before)
    broken = len(turns)
    await break_it(cluster)
    began = time.monotonic()
    # Chat sessions wait for Redis: all conversations may stand still in the end.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(traffic.client.until(broken + during), _MAX_FAULT_S)
    await repair(cluster)
    began = time.monotonic()
    repaired = len(turns)
    await traffic.client.until(repaired + after)
    traffic.stop()
    await running
    return broken, repaired, began


def _figures(
    traffic: _Traffic, marks: tuple[int, int, float], prompts: Sequence[str]
) -> dict[str, Any]:
    turns, (broken, repaired, began) = traffic.client.turns, marks
    before = turns[:broken][-2 * WINDOW :]
    rate = hit_rate(before)
    recovered = _recovered(turns[repaired:], _BACK * rate, began)
    return {
        "turns": len(turns),
        "hit_rate": {
            "before": round(rate, 4),
            "during": round(hit_rate(turns[broken:repaired]), 4),
            "after": round(hit_rate(turns[-2 * WINDOW :]), 4),
        },
        "repeated": sum(turn.tries > 1 for turn in turns),
        "moved": num_moved(turns),
        **recovered,
        **check(traffic.talks, turns, prompts),
        "stored_twice": traffic.client.num_doubled,
    }


def _recovered(turns: Sequence[Turn], target: float, began: float) -> dict[str, Any]:
    """Return after how many turns a window's hit rate reaches the target; None if never."""
    window = min(WINDOW, len(turns))
    for end in range(window, len(turns) + 1):
        if hit_rate(turns[end - window : end]) >= target:
            last = turns[end - 1]
            return {"recovered_turns": end, "recovered_s": round(last.ended - began, 1)}
    return {"recovered_turns": None, "recovered_s": None}


def check(
    talks: Mapping[str, Talk], turns: Sequence[Turn], prompts: Sequence[str]
) -> dict[str, int]:
    """Count turns that were lost, doubled or crossed, by the contents of the prompts."""
    lost = {(turn.talk, turn.number) for turn in turns if turn.is_lost}
    seen, doubled, crossed = set(), set(), set()
    for prompt in prompts:
        if not (asked := _LAST.findall(prompt)):
            continue
        number, name = asked[-1]
        question, documents = talks[name].turns[int(number)]
        key = (name, int(number))
        counts = [prompt.count(document.text) for document in documents]
        if min(counts) > 0:
            seen.add(key)
        else:
            lost.add(key)
        if max(counts) > 1 or prompt.count(question) > 1:
            doubled.add(key)
        if set(_PRIVATE.findall(prompt)) - {name}:
            crossed.add(key)
    lost |= {(turn.talk, turn.number) for turn in turns} - seen
    return {"lost": len(lost), "doubled": len(doubled), "crossed": len(crossed)}


def _show(result: Mapping[str, Any]) -> None:
    counts = ("repeated", "moved", "lost", "doubled", "crossed", "stored_twice")
    show_rows(
        [
            {
                "fault": row["fault"],
                "turns": row["turns"],
                **{name: f"{rate:.1%}" for name, rate in row["hit_rate"].items()},
                **{name: row[name] for name in counts},
                "back after": f"{row['recovered_turns']} turns, {row['recovered_s']} s",
            }
            for row in result["faults"]
        ]
    )


if __name__ == "__main__":
    main()
