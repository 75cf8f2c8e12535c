"""Learn from the end of each completion what its backend's prefix cache holds."""

from ragboost.cache_sync.sync import CacheSync
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.records import Answer, Placed, SentRequest
from ragboost.requests.parsed_request import ParsedRequest


class CacheLearning:
    """Compares predicted with reported cached tokens, and corrects the index by them."""

    def __init__(self, sync: CacheSync, metrics: Metrics) -> None:
        self._sync = sync
        self._metrics = metrics

    async def done(
        self, parsed: ParsedRequest, placed: Placed, sent: SentRequest, answer: Answer
    ) -> None:
        tracked, usage, backend = sent.tracked, answer.usage, answer.backend
        if tracked is not None:
            is_computed = 0 < answer.status < 300
            tracked.report_end(usage, backend=backend.name, is_computed=is_computed)
        if usage is None or (cached_tokens := usage.cached_tokens) is None:
            return
        backend.prefix_cache.note(predicted=answer.predicted_tokens, cached=cached_tokens)
        if tracked is None or not tracked.is_at(backend.name):
            return
        if backend.prefix_cache.is_absent:
            await tracked.forget_all()
            return
        error = self._sync.fidelity.record(
            predicted=tracked.predicted_tokens(cached_tokens),
            reported=cached_tokens,
            prompt_tokens=usage.prompt_tokens,
        )
        self._metrics.observe_prediction(error, self._sync.fidelity.read())
        await tracked.report_usage(usage, cached_tokens=cached_tokens)
