"""Remember the last completions, with the labels of their documents before and after boosting."""

import time
from collections import deque
from typing import Any

from ragboost.booster.context import Context
from ragboost.errors import RagBoostError, RequestError
from ragboost.proxy.asgi.client_exchange import ClientExchange
from ragboost.proxy.records import Answer, SentRequest
from ragboost.requests.headers import printable
from ragboost.requests.parsed_request import ParsedRequest
from ragboost.types import KEY_OF
from ragboost.util.bounded_map import Generations

MAX_RECENT = 50
_MAX_DOCUMENTS = 30
_MAX_LABEL = 60
_MAX_WHY = 300


def short_name(key: str) -> str:
    """Return a document's name that is short and says nothing about it."""
    return f"#{key[:6]}"


def _why(error: RagBoostError) -> str:
    """Return the reason without the client's value, which the client alone is told."""
    return printable(str(error).partition(", got ")[0])[:_MAX_WHY]


class RecentRequests:
    """A bounded memory of finished completions, and of the labels of documents."""

    def __init__(self, *, max_labels: int = 20_000) -> None:
        self._requests: deque[tuple[str, dict[str, Any]]] = deque(maxlen=MAX_RECENT)
        self._max_new_labels = max_labels // 2
        self._labels: Generations[str, str] = Generations()

    def of_team(self, team: str) -> list[dict[str, Any]]:
        """Return the completions of a team's API keys as JSON values, latest first."""
        return [entry for owner, entry in reversed(self._requests) if owner == team]

    def label(self, key: str) -> str:
        """Return the label of a document in prompts, or digits of its key while it is unknown."""
        return self._labels.get(key) or short_name(key)

    def refused(self, exchange: ClientExchange, error: RequestError) -> None:
        """Add a request that reached no backend."""
        entry = {
            "time": time.time(),
            "endpoint": exchange.endpoint,
            "status": error.status,
            "bypass": "refused",
            "why": _why(error),
        }
        self._requests.append((exchange.team, entry))

    async def done(self, parsed: ParsedRequest, sent: SentRequest, answer: Answer) -> None:
        """Add a completion that has ended."""
        usage, detection, cache_break = answer.usage, parsed.detection, sent.cache_break
        entry: dict[str, Any] = {
            "time": time.time(),
            "endpoint": answer.endpoint,
            "model": parsed.tenant_key.model,
            "backend": answer.backend.name,
            "status": answer.status,
            "detection": detection.name,
            "frame": detection.frame or None,
            "bypass": sent.bypass.reason if sent.bypass else None,
            "why": _why(sent.bypass.error) if sent.bypass and sent.bypass.error else None,
            "saved_tokens": round(sent.saved(usage).net) if answer.outcome == "ok" else 0,
            "cache_break": cache_break.sentence if cache_break else None,
            "ttft_ms": None if answer.ttft_s is None else answer.ttft_s * 1000,
            "prompt_tokens": usage.prompt_tokens if usage else None,
            "cached_tokens": usage.cached_tokens if usage else None,
            "reused_tokens": usage.reused_tokens if usage else None,
            "recomputed_tokens": usage.recomputed_tokens if usage else None,
            "bought_tokens": usage.bought_tokens(sent.bought_tokens) if usage else None,
            "before": [],
            "after": [],
        }
        if sent.context is not None:
            entry["before"], entry["after"] = self._orders(sent.context)
        self._requests.append((answer.team, entry))

    def _orders(self, context: Context) -> tuple[list[str], list[str]]:
        after = [label[:_MAX_LABEL] for label in context.labels]
        keys = list(map(KEY_OF, context.documents))
        if len(self._labels.newer) + len(keys) > self._max_new_labels:
            self._labels.turn()
        # A request may have more documents than labels are kept.
        self._labels.newer.update(zip(keys[: self._max_new_labels], after, strict=False))
        if -1 not in context.positions:
            before = list(map(after.__getitem__, context.positions))
            return before[:_MAX_DOCUMENTS], after[:_MAX_DOCUMENTS]
        before = [
            after[position] if position >= 0 else self.label(document.key)
            for document, position in zip(context.retrieved, context.positions, strict=True)
        ]
        return before[:_MAX_DOCUMENTS], after[:_MAX_DOCUMENTS]
