"""The last completions, with the order of their documents before and after.

Holds labels and numbers, bounded; never text of documents or questions.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Any

from ragboost.cache_sync.usage import Usage
from ragboost.context import Context
from ragboost.proxy.asgi.request_context import RequestContext

_MAX_DOCUMENTS = 30
_MAX_LABEL = 60


class RecentRequests:
    """Bounded memory of completions that are over, and of what documents are called.

    Args:
        max_requests: completions kept.
        max_labels: labels kept, by last use.
    """

    def __init__(self, *, max_requests: int = 50, max_labels: int = 20_000) -> None:
        self._requests: deque[dict[str, Any]] = deque(maxlen=max_requests)
        self._labels: OrderedDict[Hashable, str] = OrderedDict()
        self._max_labels = max_labels

    def __iter__(self) -> Any:
        """The completions as JSON values, latest first."""
        return reversed(self._requests)

    def label(self, key: Hashable) -> str:
        """What prompts called the document of this key; digits of it while that is not known."""
        return self._labels.get(key) or f"[{str(key)[:8]}]"

    def add(
        self,
        exchange: RequestContext,
        context: Context | None,
        usage: Usage | None,
        *,
        backend: str,
        bypass: str | None,
    ) -> None:
        """Add a completion that has ended.

        Args:
            exchange: its request and response.
            context: its boosted documents, or None.
            usage: as the backend reported it, or None.
            backend: name of the backend.
            bypass: the reason for which nothing was boosted, or None.
        """
        first_byte = exchange.first_byte
        entry: dict[str, Any] = {
            "time": time.time(),
            "endpoint": exchange.endpoint,
            "model": exchange.model,
            "backend": backend,
            "status": exchange.status,
            "bypass": bypass,
            "ttft_ms": None if first_byte is None else (first_byte - exchange.started) * 1000,
            "prompt_tokens": usage.prompt_tokens if usage else None,
            "cached_tokens": usage.cached_tokens if usage else None,
            "before": [],
            "after": [],
        }
        if context is not None:
            entry["before"], entry["after"] = self._orders(context)
        self._requests.append(entry)

    def _orders(self, context: Context) -> tuple[list[str], list[str]]:
        after = [label[:_MAX_LABEL] for label in context.labels]
        for document, label in zip(context.documents, after, strict=True):
            self._labels[document.key] = label
            self._labels.move_to_end(document.key)
        while len(self._labels) > self._max_labels:
            self._labels.popitem(last=False)
        before = [
            after[position] if position >= 0 else self.label(document.key)
            for document, position in zip(context.retrieved, context.positions, strict=True)
        ]
        return before[:_MAX_DOCUMENTS], after[:_MAX_DOCUMENTS]
