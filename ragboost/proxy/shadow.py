"""Forward requests as they came, and count what boosting would have saved."""

from collections.abc import Mapping
from typing import Any

from ragboost.booster.tenants import Tenant
from ragboost.cache_sync.tracked_request import EngineRequestId
from ragboost.config import Settings
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.offload import call
from ragboost.proxy.pipeline import BoostedRequest, BoostPipeline, needs_thread
from ragboost.proxy.routing.assignment import Assignment
from ragboost.rewriting.parsed_request import Bypass, ParsedRequest
from ragboost.rewriting.recognition import Histories
from ragboost.rewriting.rewriter import BoostResult
from ragboost.rewriting.sent_history import Conversation, Conversations


class ShadowPipeline(BoostPipeline):
    """A BoostPipeline that boosts nothing.

    The documents of a `ragboost` object are rendered in the order given. Boosting is tried on the
    side: the context indexes and a second record of conversations hold what would have been sent.
    """

    def __init__(self, settings: Settings, metrics: Metrics, **parts: Any) -> None:
        super().__init__(settings, metrics, **parts)
        self._boosted_conversations = Conversations(settings.session)
        self._boosted_histories = Histories(settings.session)

    async def _boost(
        self,
        request: ParsedRequest,
        conversation: Conversation | None,
        tenant: Tenant,
        assignment: Assignment,
        engine_id: EngineRequestId | None,
        *,
        has_options: bool,
    ) -> BoostedRequest:
        await self._try(request, tenant, assignment)
        return await super()._boost(
            request, conversation, tenant, assignment, engine_id, has_options=has_options
        )

    async def _try(self, request: ParsedRequest, tenant: Tenant, assignment: Assignment) -> None:
        """Count what boosting would do, in a conversation boosted from its beginning."""
        backend, match = assignment.backend.name, None
        async with tenant.lock:
            conversation: Conversation | None = None
            if request.session is not None:
                conversation = self._boosted_conversations.get(request.session)
            elif request.claim is not None:
                match = self._boosted_histories.match(request.claim)
                conversation = match.conversation

            def work() -> BoostResult:
                result = self._rewriter.rewrite(
                    request, tenant.booster(backend), conversation, planned=assignment.planned
                )
                if result.context is not None:
                    original = tenant.original(backend)
                    self._metrics.count_shadow(result.context, original, preamble=result.preamble)
                return result

            result = await call(work, in_thread=needs_thread(request))
            if match is not None:
                self._boosted_histories.add(match, result.delta)
            elif conversation is not None:
                self._boosted_conversations.add(conversation, result.delta)

    def _rewrite(
        self,
        request: ParsedRequest,
        conversation: Conversation | None,
        tenant: Tenant,
        assignment: Assignment,
    ) -> BoostResult:
        return self._rewriter.render(request, conversation, bypass=Bypass("shadow"))

    def _share_passages(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        return fields
