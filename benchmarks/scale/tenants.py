"""Measure what many tenants, conversations and engines cost one router: memory and CPU per request.

    python -m benchmarks.scale.tenants --json
    python -m benchmarks.scale.tenants --tenants 100 --sessions 1000 --engines 16

Each request belongs to a conversation of a tenant, is routed by its messages and its documents, and
boosted for the engine that was chosen, with the product's own dispatcher and Boosters; nothing is
sent. Tenants and documents follow Zipf laws; each tenant has documents of its own.
"""

import asyncio
import gc
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import make_parser, report, show_rows
from ragboost.booster.tenants import TenantKey, Tenants
from ragboost.config import Settings
from ragboost.proxy.routing.admission import MessagePrefix, RoutingRequest
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.upstream.backends import Backends
from ragboost.types import Document, Request

DOCUMENTS = 15
CORPUS = 2_000  # documents of a tenant
DOCUMENT_TOKENS = 270  # for the length of prompts; texts are short
CAPACITY_TOKENS = 500_000  # of an engine's prefix cache


async def measure(*, engines: int, tenants: int, sessions: int, turns: int) -> dict[str, Any]:
    """Send `turns` requests of each conversation, all first turns first; return the figures."""
    settings = Settings.model_validate(
        {
            "backends": [{"url": f"http://e{number}"} for number in range(engines)],
            "index": {"capacity_tokens": CAPACITY_TOKENS},
            "proxy": {"max_tenants": tenants},
        }
    )
    before = _resident_bytes()
    pool = Tenants(settings)
    dispatcher = Dispatcher(settings, backends=Backends.of(settings), tenants=pool)
    rng = np.random.default_rng(1)
    owners = np.minimum(rng.zipf(1.3, sessions) - 1, tenants - 1)
    owners[:tenants] = np.arange(tenants)
    place_us, boost_us = [], []
    for turn in range(turns):
        for session in range(sessions):
            tenant = pool.get(TenantKey("m", f"salt {owners[session]}"))
            links = [b"%d/%d" % (session, at) for at in range(turn + 1)]
            documents = _documents(rng, int(owners[session]))
            request = RoutingRequest(
                tenant=tenant,
                find_leading=partial(Request, "?", documents),
                prefixes=[MessagePrefix(link, 400) for link in links],
                prompt_tokens=DOCUMENTS * DOCUMENT_TOKENS,
            )
            admission = dispatcher.admission(request)
            started = time.thread_time_ns()
            await dispatcher.router.place(admission)
            placed = time.thread_time_ns()
            booster = tenant.booster(admission.backend.name)
            booster.boost("?", documents)
            boost_us.append((time.thread_time_ns() - placed) / 1000)
            place_us.append((placed - started) / 1000)
            admission.close()
    gc.collect()
    last = slice(-min(20_000, len(place_us)), None)
    return {
        "engines": engines,
        "tenants": tenants,
        "sessions": sessions,
        "requests": len(place_us),
        "route_us_p50": round(float(np.median(place_us[last])), 1),
        "route_us_p99": round(float(np.percentile(place_us[last], 99)), 1),
        "boost_us_p50": round(float(np.median(boost_us[last])), 1),
        "boosters": sum(len(tenant.boosters) for tenant in pool.all()),
        "nodes": pool.num_nodes,
        "memory_mb": round((_resident_bytes() - before) / 1e6),
    }


def _documents(rng: np.random.Generator, owner: int) -> tuple[Document, ...]:
    ranks = dict.fromkeys(np.minimum(rng.zipf(1.2, 4 * DOCUMENTS) - 1, CORPUS - 1).tolist())
    ids = [*ranks, *[CORPUS + at for at in range(DOCUMENTS)]][:DOCUMENTS]
    text = "x" * 40
    return tuple(Document(f"{owner} {at} {text}", id=f"{owner}-{at}") for at in ids)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--engines", type=int, default=256)
    parser.add_argument("--tenants", type=int, default=10_000)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=1)
    args = parser.parse_args()
    row = asyncio.run(
        measure(
            engines=args.engines, tenants=args.tenants, sessions=args.sessions, turns=args.turns
        )
    )
    report([row], args, show_rows)


if __name__ == "__main__":
    main()
