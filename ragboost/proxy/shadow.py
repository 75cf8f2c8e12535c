"""Try out what boosting would have saved of requests that are forwarded as they came."""

import asyncio

from ragboost.booster.tenants import Tenant, Tenants
from ragboost.config import Settings
from ragboost.ordering import Order
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.records import Savings
from ragboost.requests.history import History
from ragboost.requests.parsed_request import ParsedRequest
from ragboost.requests.rewriter import Rewriting


class ShadowTrial:
    """Tries to boost each request, in a conversation boosted from its beginning.

    The context indexes and a second history hold what would have been sent.
    """

    def __init__(self, settings: Settings, metrics: Metrics, tenants: Tenants) -> None:
        self._metrics = metrics
        self._tenants = tenants
        self._label_template = settings.hints.label_template
        self._history = History.of(settings)

    async def run(
        self, request: ParsedRequest, tenant: Tenant, backend: str, *, planned: Order | None
    ) -> None:
        """Boost a request, count it, and forget the result; the caller has locked the tenant."""
        conversation = self._history.known(request.chain) if request.is_followed else None

        def work() -> Rewriting:
            result = Rewriting(request, conversation, label_template=self._label_template)
            result.boost(tenant.booster(backend), planned=planned)
            if (context := result.context) is not None:
                gain = self._tenants.order_gain(
                    context, tenant, backend, prompt_prefix=result.prompt_prefix
                )
                self._metrics.count_context(context)
                savings = Savings.of(context, tenant.tokens, order_gain=gain)
                self._metrics.count_savings(savings)
            return result

        result = await asyncio.to_thread(work) if request.is_large else work()
        self._history.add(result.delta)
