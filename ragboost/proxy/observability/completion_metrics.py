"""Count completions that have ended: times, tokens, money, arms."""

from collections.abc import Sequence

from ragboost.config import PriceSettings
from ragboost.hosted.receipts import cost_of
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.records import Answer, Placed, SentRequest
from ragboost.rewriting.parsed_request import ParsedRequest


class CompletionMetrics:
    def __init__(self, metrics: Metrics, prices: Sequence[PriceSettings]) -> None:
        self._metrics = metrics
        self._prices = prices

    async def done(
        self, parsed: ParsedRequest, placed: Placed, sent: SentRequest, answer: Answer
    ) -> None:
        if answer.ended is None:
            return
        usage, ttft_s, dropped = answer.usage, answer.ttft_s, sent.dropped_tokens
        if ttft_s is not None:
            result = "boosted" if sent.context is not None else "bypassed"
            self._metrics.observe_first_byte(answer.endpoint, result, seconds=ttft_s)
        cost = None
        if usage is not None:
            model = parsed.tenant_key.model
            cost = cost_of(self._prices, model, usage, dropped_tokens=dropped)
        if parsed.arm is not None and answer.outcome == "ok":
            self._metrics.count_arm(parsed.arm, usage, cost, seconds=ttft_s or 0.0)
        if usage is not None:
            self._metrics.count_cost(dropped, cost)
            bought_tokens = usage.bought_tokens(sent.bought_tokens)
            self._metrics.count_usage(usage, bought_tokens=bought_tokens)
