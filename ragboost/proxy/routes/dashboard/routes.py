"""Serve the dashboard's page and its figures."""

import base64
import hashlib
import heapq
import math
import re
import secrets
import time
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ragboost import __version__
from ragboost.index.context_index import ContextIndex
from ragboost.index.node import Node
from ragboost.proxy.observability.recent_requests import RecentRequests, short_name
from ragboost.proxy.routes.dashboard.figures import (
    TotalsHistory,
    advice_for,
    is_shadow,
    read_arms,
    read_cache_breaks,
    read_errors,
    read_not_boosted,
    read_samples,
    read_saved,
    read_totals,
    read_ttft,
)
from ragboost.proxy.state import ProxyState
from ragboost.types import named_key

_MAX_INDEXES = 10


class Dashboard:
    def __init__(self, state: ProxyState) -> None:
        self._state = state
        self._keys = state.keys
        self._started = time.time()
        self._secret = secrets.token_bytes(16)
        # The samples that it draws, opened and closed with the app.
        self.history = TotalsHistory(state.metrics.registry)

    def routes(self) -> list[Route]:
        return [Route("/dashboard", self.page), Route("/dashboard/data", self.data)]

    async def page(self, _request: Request) -> Response:
        """Return the page: hit rate, context indexes, backends, recent requests."""
        text, policy = _page()
        return HTMLResponse(text, headers={"content-security-policy": policy})

    async def data(self, request: Request) -> Response:
        """Return the figures of the page."""
        team = self._keys.check(request.scope["headers"])
        figures = to_json(self._figures(team), inf_nan_mode="null")
        return Response(
            figures, media_type="application/json", headers={"cache-control": "no-store"}
        )

    def _figures(self, team: str) -> dict[str, Any]:
        samples = read_samples(self._state.metrics.registry.collect())
        hold_out = self._state.hold_out.saved_share()
        recent = self._state.recent.of_team(team)
        return {
            "version": __version__,
            "now": time.time(),
            "started": self._started,
            "is_shadow": is_shadow(samples),
            "totals": {
                **read_totals(samples),
                "saved_by": read_saved(samples),
                "index_nodes": self._state.boosting.tenants.num_nodes,
                "waiting": self._state.dispatcher.num_waiting,
            },
            "errors": read_errors(samples),
            "ttft": read_ttft(samples),
            "arms": read_arms(samples),
            "hold_out": hold_out and hold_out._asdict(),
            "cache_breaks": read_cache_breaks(samples),
            "not_boosted": read_not_boosted(samples),
            "reuse_checks": self._state.error_bar.of_team(team),
            "fidelity": self._fidelity(),
            "history": self.history.as_json(),
            "backends": self._backends(),
            "indexes": self._indexes(team),
            "recent": [{**r, "advice": advice_for(r["bypass"] or "")} for r in recent],
        }

    def _fidelity(self) -> dict[str, float | None]:
        figures = self._state.sync.fidelity.read()
        if not figures.num_requests:
            return {"precision": None, "recall": None}
        return {"precision": figures.precision, "recall": figures.recall}

    def _backends(self) -> list[dict[str, Any]]:
        states: dict[str, list[str]] = {}
        for view in self._state.sync.streams:
            reason = f" ({view.silence})" if view.silence else ""
            states.setdefault(view.backend, []).append(f"{view.stream.state}{reason}")
        limits = {k: v for k, v in self._state.dispatcher.hold_limits.items() if v != math.inf}
        return [
            {
                "name": backend.name,
                "is_healthy": backend.is_healthy,
                "problem": backend.problem,
                "running": backend.load.running,
                "prefill_tokens": backend.load.prefill_tokens,
                "hold_limit_tokens": limits.get(backend.name),
                "has_no_prefix_cache": backend.prefix_cache.is_absent,
                "kv_events": states.get(backend.name, []),
            }
            for backend in self._state.backends.all
        ]

    def _shown(self, salt: str) -> str:
        """Return a name for a secret that differs from others' and does not give it away."""
        digest = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), key=self._secret)
        return digest.hexdigest()[:6] if salt else ""

    def _indexes(self, team: str) -> list[dict[str, Any]]:
        tenants = [t for t in self._state.boosting.tenants.all() if t.key.team == team]
        return [
            {
                "model": tenant.key.model,
                "salt": self._shown(tenant.key.cache_salt),
                "backend": name,
                "num_nodes": booster.index.num_nodes,
                "num_tokens": booster.index.num_tokens,
                "children": hot_prefixes(booster.index, self._state.recent),
            }
            for tenant in reversed(tenants[-_MAX_INDEXES:])
            for name, booster in tenant.boosters.items()
        ]


@cache
def _page() -> tuple[str, str]:
    """Return the page and its content security policy: its own script, style and server only."""
    text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    sources = {}
    for tag in ("script", "style"):
        found = re.search(f"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
        assert found is not None, f"page.html has no {tag}"
        digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
        sources[tag] = f"{tag}-src 'sha256-{digest}'"
    policy = (
        f"default-src 'none'; {sources['script']}; {sources['style']}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


_MAX_CHILDREN = 8
_MAX_DEPTH = 4
_MAX_DOCUMENTS = 12


def hot_prefixes(index: ContextIndex, recent: RecentRequests) -> list[dict[str, Any]]:
    """Return the most recently used nodes below the root and each of them, four levels deep."""
    return _children(index.root, index.tick, recent, depth=1)


def _children(node: Node, tick: int, recent: RecentRequests, *, depth: int) -> list[dict[str, Any]]:
    if depth > _MAX_DEPTH:
        return []
    latest = heapq.nlargest(_MAX_CHILDREN, node.children.values(), key=lambda n: n.last_used)
    return [
        {
            "name": short_name(named_key(child.documents[-1])),
            "documents": [
                recent.label(named_key(name)) for name in child.documents[:_MAX_DOCUMENTS]
            ],
            "num_documents": len(child.documents),
            "num_tokens": child.num_tokens,
            "age": tick - child.last_used,
            "num_children": len(child.children),
            "children": _children(child, tick, recent, depth=depth + 1),
        }
        for child in latest
    ]
