"""Show two replicas of the proxy at work: `make demo-cluster`.

    python -m scripts.demo_cluster [--json]

Two embedded engines, two replicas, Redis, and nginx or HAProxy where one is installed; otherwise
requests go to the replicas in turn. A third of the conversations later one replica is killed, and
after another third it comes back. Clients repeat a request that fails, as OpenAI's clients do.
"""

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ragboost.errors import RagBoostError
from ragboost.evaluation.demo.replay import MODEL
from ragboost.evaluation.demo.workload import make_workload, standard_library
from scripts.cluster import BALANCERS, Cluster, installed_balancer
from scripts.cluster_traffic import ClusterClient, Talk, Turn, hit_rate, num_moved

PHASES = ("two replicas", "one killed in the middle", "two again")

_ENGINE = (
    *("--served-model-name", MODEL),
    *("--kv-events-endpoint", "tcp://127.0.0.1:*"),
)


def main() -> None:
    """Run the demo and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--conversations", type=int, default=24, help="in each of the 3 phases")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--k", type=int, default=6, help="documents of a turn")
    parser.add_argument("--at-once", type=int, default=4, help="conversations at a time")
    parser.add_argument("--balancer", choices=[*BALANCERS, "none"], default=installed_balancer())
    parser.add_argument("--engine-size", choices=["tiny", "small"], default="small")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    try:
        result = run(
            num=args.conversations,
            turns=args.turns,
            k=args.k,
            at_once=args.at_once,
            balancer=None if args.balancer == "none" else args.balancer,
            size=args.engine_size,
        )
    except RagBoostError as error:
        print(f"demo-cluster: {error}", file=sys.stderr)
        sys.exit(2)
    print(json.dumps(result)) if args.json else Console().print(_table(result))


def run(
    *, num: int, turns: int, k: int, at_once: int, balancer: str | None, size: str
) -> dict[str, Any]:
    """Start the cluster, hold the conversations of all phases, and return the figures by phase."""
    console = Console(stderr=True)
    documents = standard_library()
    workload = make_workload(
        documents,
        sessions=0,
        conversations=num * len(PHASES),
        turns=turns,
        k=k,
        seed=1,
    )
    talks = [
        Talk(f"demo-{at}", [(question, found) for question, found in asked], is_session=at % 2 == 1)
        for at, asked in enumerate(workload.conversations)
    ]

    def engine(_: int, port: int) -> Sequence[str]:
        return [sys.executable, "-m", "ragboost", "engine", "--port", str(port), *_ENGINE]

    console.print(f"starting two engines, Redis, two replicas and {balancer or 'no balancer'}")
    env = {"RAGBOOST_ENGINE__MODEL": "ragboost-tiny"} if size == "tiny" else {}
    with Cluster(engine, balancer=balancer, engine_env=env) as cluster:
        return asyncio.run(_run(cluster, talks, num=num, at_once=at_once, console=console)) | {
            "balancer": balancer or "none"
        }


async def _run(
    cluster: Cluster, talks: Sequence[Talk], *, num: int, at_once: int, console: Console
) -> dict[str, Any]:
    phases = []
    async with ClusterClient(cluster.urls, model=MODEL) as client:
        for at, name in enumerate(PHASES):
            console.print(f"{num} conversations: {name}")
            first = len(client.turns)
            if at == 2:
                cluster.replicas[0].start()
                await asyncio.to_thread(cluster.replicas[0].wait)
            held = asyncio.create_task(_hold(client, talks[at * num : (at + 1) * num], at_once))
            if at == 1:
                await client.until(first + num * len(talks[0].turns) // 2)
                cluster.replicas[0].kill()
            await held
            phases.append({"phase": name, **_figures(client.turns[first:])})
        return {"phases": phases, "doubled": client.num_doubled}


async def _hold(client: ClusterClient, talks: Sequence[Talk], at_once: int) -> None:
    waiting = list(talks)

    async def one() -> None:
        while waiting:
            await client.converse(waiting.pop(0))

    await asyncio.gather(*[one() for _ in range(at_once)])


def _figures(turns: Sequence[Turn]) -> dict[str, Any]:
    answered = [turn for turn in turns if not turn.is_lost]
    times = [turn.ttft_s * 1000 for turn in answered if turn.ttft_s]
    return {
        "turns": len(turns),
        "lost": len(turns) - len(answered),
        "repeated": sum(turn.tries > 1 for turn in turns),
        "hit_rate": round(hit_rate(answered), 4),
        "ttft_p50_ms": round(statistics.median(times), 1) if times else 0.0,
        "conversations": len({turn.talk for turn in turns}),
        "moved": num_moved(turns),
    }


def _table(result: dict[str, Any]) -> Table:
    title = f"Two engines, two replicas, Redis, balancer: {result['balancer']}"
    table = Table("", *[each["phase"] for each in result["phases"]], title=title)
    for label, name, form in (
        ("turns", "turns", "{:,}"),
        ("turns lost", "lost", "{:,}"),
        ("turns asked again", "repeated", "{:,}"),
        ("hit rate", "hit_rate", "{:.1%}"),
        ("median TTFT", "ttft_p50_ms", "{:,.0f} ms"),
        ("conversations", "conversations", "{:,}"),
        ("conversations that moved", "moved", "{:,}"),
    ):
        table.add_row(label, *[form.format(each[name]) for each in result["phases"]])
    table.caption = f"chat sessions with a turn stored twice: {result['doubled']}"
    return table


if __name__ == "__main__":
    main()
