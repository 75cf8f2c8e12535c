"""Say what 1 to 1,000 engines and 1 to 64 proxies cost, and the hits lost to what is known late.

    python -m benchmarks.scale.clusters --json
    python -m benchmarks.scale.clusters --only hits --max-engines 16

Two parts. `costs` measures what one event batch, one search, one load report and one layout cost a
proxy process (`costs`), and multiplies by rates: an engine computes `--tokens-per-s` new
prompt tokens, so that with prompts of 4,000 tokens, half of them cached, 50,000 are 25 requests a
second; a request itself costs what `docs/lab/proxy-cost.md` says. `hits` simulates clusters in
virtual time (`simulation`); its figures are the same on every machine.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.command import make_parser, report, show_rows
from benchmarks.datasets.workloads import generate
from benchmarks.parts import part
from benchmarks.scale.costs import CACHED_SHARE, PROMPT_TOKENS, UnitCosts, unit_costs
from benchmarks.scale.simulation import Cluster, simulate_cluster

ENGINES = (1, 4, 10, 30, 100, 300, 1000)
PROXIES = (1, 4, 16, 64)
REQUEST_US = 924.0  # docs/lab/proxy-cost.md: 45 KB with tags
BEATS_PER_S = 10.0
LAYOUTS_PER_PROMPT = 2
HITS = (
    Cluster(4, 1),
    *[Cluster(4, n, are_layouts_shared=shared) for n in (4, 16) for shared in (False, True)],
    *[Cluster(4, 4, s, are_layouts_shared=True) for s in (0.01, 0.1, 1.0, 10.0)],
    Cluster(16, 1),
    *[Cluster(16, n, are_layouts_shared=shared) for n in (4, 16) for shared in (False, True)],
    *[Cluster(64, n, are_layouts_shared=True) for n in (1, 16)],
)
REQUESTS_PER_ENGINE = 60
MIN_REQUESTS = 960


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--tokens-per-s", type=int, default=50_000, help="new ones, of an engine")
    parser.add_argument("--only", choices=("costs", "hits"))
    parser.add_argument("--max-engines", type=int, default=64, help="of the simulated clusters")
    parser.add_argument("--parts", type=Path, help="folder of finished parts, to go on from")
    args = parser.parse_args()
    console = Console(stderr=True)
    result: dict[str, Any] = {}
    if args.only != "hits":
        console.print("costs ...")
        costs = unit_costs()
        result["unit_costs"] = costs._asdict()
        result["costs"] = cost_rows(costs, tokens_per_s=args.tokens_per_s)
    if args.only != "costs":
        clusters = [each for each in HITS if each.engines <= args.max_engines]
        result["hits"] = hit_rows(clusters, parts=args.parts, progress=console.print)
    report(result, args, show)


def cost_rows(costs: UnitCosts, *, tokens_per_s: int) -> list[dict[str, Any]]:
    """Return the costs for every number of engines and proxies."""
    per_engine = tokens_per_s / (PROMPT_TOKENS * (1 - CACHED_SHARE))
    return [_row(costs, e, p, prompts_per_s=per_engine * e) for e in ENGINES for p in PROXIES]


def _row(costs: UnitCosts, engines: int, proxies: int, *, prompts_per_s: float) -> dict[str, Any]:
    """Return the cores and bytes a second of one proxy process, and of what all share."""
    others = proxies - 1
    own_per_s = prompts_per_s / proxies
    is_routed = engines > 1  # a single engine is not chosen
    us = {
        "requests": own_per_s * REQUEST_US,
        "routing": own_per_s * is_routed * costs.route_us,
        "events": prompts_per_s * costs.event_us,
        "loads": BEATS_PER_S * others * engines * costs.load_us,
        "layouts": LAYOUTS_PER_PROMPT * own_per_s * others * costs.learn_us,
    }
    load_bytes = BEATS_PER_S * others * engines * costs.load_bytes
    layout_bytes = LAYOUTS_PER_PROMPT * own_per_s * others * costs.layout_bytes
    return {
        "engines": engines,
        "proxies": proxies,
        "requests_per_s": round(own_per_s),
        **{f"{name}_cores": round(spent / 1e6, 3) for name, spent in us.items()},
        "cores": round(sum(us.values()) / 1e6, 3),
        "events_mb_per_s": round(prompts_per_s * costs.event_bytes / 1e6, 2),
        "loads_mb_per_s": round(load_bytes / 1e6, 3),
        "layouts_mb_per_s": round(layout_bytes / 1e6, 2),
        "engine_out_mb_per_s": round(
            proxies * prompts_per_s / engines * costs.event_bytes / 1e6, 2
        ),
        "mirror_gb": round(engines * costs.mirror_bytes / 1e9, 2),
    }


def hit_rows(
    clusters: Sequence[Cluster],
    *,
    parts: Path | None = None,
    progress: Callable[[str], object] = lambda _: None,
    requests_per_engine: int = REQUESTS_PER_ENGINE,
    min_requests: int = MIN_REQUESTS,
) -> list[dict[str, Any]]:
    """Simulate clusters; each gets the same Zipf requests, as many as its engines need."""
    rows = []
    for cluster in clusters:
        num = max(min_requests, requests_per_engine * cluster.engines)
        name = "-".join(f"{value}" for value in (*cluster, num))
        progress(f"hits {name} ...")

        def simulate(cluster: Cluster = cluster, num: int = num) -> list[dict[str, Any]]:
            return [simulate_cluster(cluster, generate("zipf", num, k=8))]

        rows += part(parts, f"hits-{name}", simulate)
    return rows


def show(result: dict[str, Any]) -> None:
    for name in result.keys() - {"unit_costs"}:
        show_rows(result[name], name)


if __name__ == "__main__":
    main()
