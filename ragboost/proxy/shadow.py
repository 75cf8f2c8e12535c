"""Try out what boosting would have saved of requests that are forwarded as they came."""

import asyncio

from ragboost.booster.tenants import Tenant
from ragboost.config import Settings
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.observer import RequestObserver
from ragboost.proxy.records import Placed, Savings
from ragboost.requests.history import History
from ragboost.requests.parsed_request import ParsedRequest
from ragboost.requests.rewriter import Rewriting


class ShadowTrial:
    """Tries to boost each request, in a conversation boosted from its beginning.

    The context indexes and a second history hold what would have been sent.
    """

    def __init__(self, settings: Settings, metrics: Metrics, observer: RequestObserver) -> None:
        self._metrics = metrics
        self._observer = observer
        self._label_template = settings.hints.label_template
        self._history = History.of(settings)

    async def run(
        self, request: ParsedRequest, tenant: Tenant, placed: Placed, *, in_thread: bool
    ) -> None:
        """Boost a request, count it, and forget the result; the caller has locked the tenant."""
        backend = placed.backend.name
        conversation = self._history.known(request.chain) if request.is_followed else None

        def work() -> Rewriting:
            result = Rewriting(request, conversation, label_template=self._label_template)
            result.boost(tenant.booster(backend), planned=placed.planned)
            if (context := result.context) is not None:
                gain = self._observer.order_gain(result, tenant, backend)
                self._metrics.count_context(context)
                savings = Savings.of(context, tenant.tokens, order_gain=gain)
                self._metrics.count_savings(savings)
            return result

        result = await asyncio.to_thread(work) if in_thread else work()
        self._history.add(result.delta)
