"""Learn from the end of each completion what its backend's prefix cache holds."""

from ragboost.cache_sync.sync import CacheSync
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.records import Answer, SentRequest
from ragboost.requests.parsed_request import ParsedRequest


async def learn(
    _parsed: ParsedRequest, sent: SentRequest, answer: Answer, *, sync: CacheSync, metrics: Metrics
) -> None:
    """Compare predicted with reported cached tokens, and correct the index by them."""
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
    error = sync.fidelity.record(
        predicted=tracked.predicted_tokens(cached_tokens),
        reported=cached_tokens,
        prompt_tokens=usage.prompt_tokens,
    )
    metrics.observe_prediction(error, sync.fidelity.read())
    await tracked.report_usage(usage, cached_tokens=cached_tokens)
