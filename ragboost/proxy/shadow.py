"""Model the other order of a request's documents: what boosting would have saved of a request that
is forwarded as it came, and what the client's order would have found cached of a boosted one.
"""

import asyncio
from contextlib import suppress

from ragboost.booster.tenants import Tenant
from ragboost.config import Settings
from ragboost.errors import RagBoostError
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.routing.admission import Admission
from ragboost.rewriting.parsed_request import ParsedRequest
from ragboost.rewriting.recognition import Histories
from ragboost.rewriting.rewriter import Rewriting
from ragboost.rewriting.sent_history import Conversation, Conversations

_ALL = 256  # requests of which all are compared, so that there are figures from the first on
_SAMPLED = "0"  # first digit of the keys of sampled documents
_SAMPLE = 1 / 16


class OrderComparison:
    """Compares the client's order with that of boosting, in models of the same prefix cache.

    Of the first requests it takes all, then those whose first document is sampled by its key: in
    the client's order only requests with the same first document share a prefix, so that such a
    sample finds what all requests would. Its cache is as much smaller.

    Args:
        is_whole: compare all requests.
    """

    def __init__(self, metrics: Metrics, *, is_whole: bool = False) -> None:
        self._metrics = metrics
        self._is_whole = is_whole
        self._num = 0

    def count(self, result: Rewriting, tenant: Tenant, backend: str) -> None:
        """Count a request that was boosted; of a conversation only the first turn.

        The caller has locked the tenant.
        """
        context = result.context
        if context is None or context.turn > 1 or not context.retrieved:
            return
        is_all = self._is_whole or self._num < _ALL
        self._num += 1
        if not (is_all or context.retrieved[0].key.startswith(_SAMPLED)):
            return
        original = tenant.original(backend, share=1 if is_all else _SAMPLE)
        with suppress(RagBoostError):  # a broken model of what was not sent harms nobody
            sent = original.record(context.retrieved, prompt_prefix=result.prompt_prefix)
            self._metrics.count_orders(context, sent)


class ShadowTrial:
    """Tries to boost each request, in a conversation boosted from its beginning.

    The context indexes and a second record of conversations hold what would have been sent.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._metrics = metrics
        self._orders = OrderComparison(metrics, is_whole=True)
        self._label_template = settings.hints.label_template
        self._conversations = Conversations(settings.session)
        self._histories = Histories(settings.session)

    async def run(
        self, request: ParsedRequest, tenant: Tenant, admission: Admission, *, in_thread: bool
    ) -> None:
        """Boost a request, count it, and forget the result; the caller has locked the tenant."""
        backend = admission.backend.name
        conversation: Conversation | None = None
        if request.session is not None:
            conversation = self._conversations.get(request.session)
        elif request.links:
            conversation = self._histories.match(request)

        def work() -> Rewriting:
            result = Rewriting(request, conversation, label_template=self._label_template)
            result.boost(tenant.booster(backend), planned=admission.planned)
            if (context := result.context) is not None:
                kept = sum(tenant.tokens.count_documents(context.documents))
                retrieved = sum(tenant.tokens.count_documents(context.retrieved))
                self._metrics.count_shadow(context, dropped_tokens=retrieved - kept)
                self._orders.count(result, tenant, backend)
            return result

        result = await asyncio.to_thread(work) if in_thread else work()
        if request.session is None and request.links and conversation is not None:
            self._histories.add(request, conversation, result.delta)
        elif conversation is not None:
            self._conversations.add(conversation, result.delta)
