"""Measure the proxy's processor time, latency and throughput, next to other proxies.

    python -m benchmarks.proxy --json
    python -m benchmarks.proxy --only ragboost --only nginx --body 45k

All targets are processes in front of the same mock backend and receive the same bytes; `direct` is
the backend itself. Rounds are interleaved and medians reported, so ratios between targets are more
reliable than absolute microseconds. The documents stand in tags in the system message; for the same
RAGBoost process also in a `ragboost` object (`ragboost-object`), joined by blank lines without a
mark (`ragboost-joined`), and in the question's text (`ragboost-none`). Times are microseconds per
request. Targets that are not installed are listed in `left_out`; `scripts/peers/setup.sh` installs
the peers.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import uvloop

from benchmarks.command import make_parser, report, show_rows
from benchmarks.processes import last_cpu
from benchmarks.proxy.rounds import BODIES, Round, requests_for, run_round
from benchmarks.proxy.targets import Target, known_peers, running
from scripts.processes import exit_on_sigterm

CLIENTS = (1, 64)
_MIN_REQUESTS = 24
_WARM_UP = 12


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, default=300, help="maximum requests per round")
    parser.add_argument("--seconds", type=float, default=3.0, help="approximate length of a round")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per target")
    parser.add_argument(
        "--only", action="append", choices=tuple(known_peers()), help="targets to run"
    )
    parser.add_argument("--body", action="append", choices=tuple(BODIES), help="bodies to send")
    args = parser.parse_args()
    exit_on_sigterm()
    names = args.only or list(known_peers())
    with running(names, log=_log) as targets:
        os.sched_setaffinity(0, {last_cpu()})
        measured = _measure(targets, args)
    result = {"targets": measured, "left_out": [name for name in names if name not in measured]}
    report(result, args, lambda _: _show(measured))


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _measure(targets: Sequence[Target], args: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {target.name: {} for target in targets}
    for body in args.body or BODIES:
        for clients in CLIENTS:
            _log(f"{body}, {clients} clients")
            rounds: dict[str, list[Round]] = {target.name: [] for target in targets}
            sizes = {t.name: _num_requests(t, body, clients, args) for t in targets}
            for number in range(args.rounds):
                for target in targets:
                    requests = requests_for(target, body, sizes[target.name], seed=number)
                    rounds[target.name].append(uvloop.run(run_round(target, requests, clients)))
            for name, measured in rounds.items():
                per_client = result[name].setdefault(body, {})
                per_client[str(clients)] = {
                    field: round(statistics.median(getattr(r, field) for r in measured), 1)
                    for field in Round.__dataclass_fields__
                }
    return result


def _num_requests(target: Target, body: str, clients: int, args: argparse.Namespace) -> int:
    """Estimate how many requests fit into a round, with a few that also warm up the target."""
    requests = requests_for(target, body, _WARM_UP, seed=-1)
    uvloop.run(run_round(target, requests, clients=1))
    warm = uvloop.run(run_round(target, requests, clients=min(clients, _WARM_UP)))
    most: int = min(args.requests, round(args.seconds * warm.rps))
    return max(_MIN_REQUESTS, 2 * clients, most)


def _show(targets: dict[str, Any]) -> None:
    nginx = targets.get("nginx", {})
    rows = [
        {
            "target": name,
            "body": body,
            "clients": clients,
            **{field: round(value) for field, value in figures.items()},
            "÷ nginx": f"{figures['cpu_us'] / nginx[body][clients]['cpu_us']:.1f}" if nginx else "",
        }
        for name, bodies in targets.items()
        for body, loads in bodies.items()
        for clients, figures in loads.items()
    ]
    show_rows(rows)


if __name__ == "__main__":
    main()
