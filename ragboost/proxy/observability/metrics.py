"""Declare every metric of the proxy, once. Names and labels, with few values, are public API."""

from collections.abc import Callable, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ragboost.booster.context import Context
from ragboost.cache_sync.fidelity import Fidelity
from ragboost.cache_sync.sync import CacheSync
from ragboost.config import PriceSettings
from ragboost.index import IndexEntry
from ragboost.proxy.hosted.receipts import PromptCost, cost_of
from ragboost.proxy.observability.collectors import (
    NumberCollector,
    Read,
    StreamCollector,
)
from ragboost.proxy.observability.instruments import Counter, Histogram
from ragboost.proxy.records import Answer, Placed, SentRequest
from ragboost.requests.formats import Detection
from ragboost.requests.parsed_request import ParsedRequest
from ragboost.requests.wires.usage import Usage

CONTENT_TYPE = CONTENT_TYPE_LATEST
_MAX_MODELS = 100
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 600)
_ERRORS = (-1.0, -0.5, -0.2, -0.1, -0.05, -0.01, 0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
_OVERHEAD_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)


class Metrics:
    """The metrics of one app, in a registry of its own."""

    def __init__(self, prices: Sequence[PriceSettings] = ()) -> None:
        self._prices = prices
        self.registry = CollectorRegistry()
        self._counter = partial(Counter, registry=self.registry)
        self._histogram = partial(Histogram, registry=self.registry)
        self._gauge = gauge = partial(Gauge, registry=self.registry)
        self._models: set[str] = set()
        self._declare_requests()
        self._declare_tokens()
        self._declare_orders()
        self._declare_arms()
        self._declare_predictions()
        # Gauges that are set when the metrics are read.
        self.index_nodes = gauge("ragboost_index_nodes", "Nodes of all context indexes.")
        self.history_messages = gauge(
            "ragboost_history_messages",
            "Messages kept as they were sent, to be sent again unchanged.",
        )
        # Counter of failed operations.
        self.session_store_failures = self._counter(
            "ragboost_session_store_failures_total",
            "Operations of the session API's store that failed.",
        )
        self._recorded = self._counter(
            "ragboost_recorded_requests_total",
            "Completions for the log of `proxy.record`: written, or dropped because the disk was "
            "full or slow.",
            ("result",),
        )
        self.tasks = gauge(
            "ragboost_tasks", "Tasks on the event loop: a few, and those of running requests."
        )
        self.queue_depth = gauge("ragboost_queue_depth", "Requests in the waiting room.")
        self.backend_up = gauge(
            "ragboost_backend_up", "1 for a healthy backend, 0 for one that is down.", ("backend",)
        )
        self.backend_cache_absent = gauge(
            "ragboost_backend_prefix_cache_absent",
            "1 for a backend that reported no cached token in 60 responses for which cached tokens "
            "were predicted, else 0.",
            ("backend",),
        )
        self.backend_hold_limit = gauge(
            "ragboost_backend_hold_limit_tokens",
            "Prompt tokens being computed by a backend from which the adaptive waiting room holds "
            "requests; infinite while it never does.",
            ("backend",),
        )
        self.backend_running = gauge(
            "ragboost_backend_running", "Requests running on a backend.", ("backend",)
        )

    def _declare_requests(self) -> None:
        self._requests = self._counter(
            "ragboost_requests_total",
            "Requests, by how they ended.",
            ("endpoint", "model", "outcome"),
        )
        self._bypass = self._counter(
            "ragboost_bypass_total", "Requests forwarded without boosting, by reason.", ("reason",)
        )
        self._detections = self._counter(
            "ragboost_detections_total",
            "Completions by what was seen of their documents: found, with the kind of their frame, "
            "or why there is nothing to boost.",
            ("detection", "frame"),
        )
        self._duration = self._histogram(
            "ragboost_request_duration_seconds",
            "Time from the request's head to the last byte of the response.",
            ("endpoint",),
            buckets=_SECONDS,
        )
        self._ttft = self._histogram(
            "ragboost_time_to_first_token_seconds",
            "Time from a completion's head to the first byte of the response's body.",
            ("endpoint", "result"),
            buckets=_SECONDS,
        )
        self._overhead = self._histogram(
            "ragboost_overhead_seconds",
            "Time that the proxy itself spends on a request, by stage.",
            ("stage",),
            buckets=_OVERHEAD_SECONDS,
        )
        self._queue_wait = self._histogram(
            "ragboost_queue_wait_seconds",
            "Time that a completion waits until it is sent to its backend.",
            buckets=_OVERHEAD_SECONDS,
        )
        self._releases = self._counter(
            "ragboost_releases_total",
            "Completions sent to their backend by the adaptive waiting room: at_once, or after "
            "a wait alone, planned with others, at max_wait, or because the room was full.",
            ("how",),
        )

    def _declare_tokens(self) -> None:
        self._documents = self._counter(
            "ragboost_documents_total",
            "Documents of boosted requests: sent, dropped as duplicates, or blank (without text).",
            ("result",),
        )
        for result in ("sent", "dropped", "blank"):
            self._documents.labels(result).inc(0)
        self._prompt_tokens = self._counter(
            "ragboost_prompt_tokens_total", "Prompt tokens that backends reported."
        )
        self._cached_tokens = self._counter(
            "ragboost_cached_prompt_tokens_total",
            "Prompt tokens that backends reported as read from the prefix cache.",
        )
        self._dropped_tokens = self._counter(
            "ragboost_dropped_prompt_tokens_total", "Tokens of documents that were not sent again."
        )
        self._written_tokens = self._counter(
            "ragboost_cache_write_prompt_tokens_total",
            "Prompt tokens that backends reported as written to the prefix cache.",
        )
        self._cost = self._counter(
            "ragboost_prompt_cost_total",
            "Cost of the prompts of models with a price, in the currency of `prices`.",
        )
        self._uncached_cost = self._counter(
            "ragboost_uncached_prompt_cost_total",
            "Cost that the same prompts would have had without a cache and without dropping.",
        )
        self._reused_tokens = self._counter(
            "ragboost_reused_prompt_tokens_total",
            "Prompt tokens that backends reported as reused from stored chunks.",
        )
        self._recomputed_tokens = self._counter(
            "ragboost_recomputed_prompt_tokens_total",
            "Prompt tokens of stored chunks that backends reported as computed again.",
        )
        self._bought_tokens = self._counter(
            "ragboost_bought_prompt_tokens_total",
            "Prompt tokens of stored chunks that were computed exactly to become a cached prefix.",
        )
        self._predicted_tokens = self._counter(
            "ragboost_predicted_cached_prompt_tokens_total",
            "Document tokens that the context index predicted as cached.",
        )
        self._cache_breaks = self._counter(
            "ragboost_cache_breaks_total",
            "Requests that are not the continuation of the one before, by cause.",
            ("cause",),
        )
        self._broken_tokens = self._counter(
            "ragboost_cache_break_tokens_total",
            "Prompt tokens that would have been cached without cache breaks, estimated.",
            ("cause",),
        )
        self._passage_bytes = self._counter(
            "ragboost_passage_bytes_total",
            "Bytes of repeated tool results that were replaced by references.",
        )

    def _declare_orders(self) -> None:
        self._compared_tokens = self._counter(
            "ragboost_compared_document_tokens_total",
            "Document tokens of the requests for which both orders are compared: all in shadow "
            "mode, else a sample; no later turns of conversations.",
        )
        self._compared_cached_tokens = self._counter(
            "ragboost_compared_cached_prompt_tokens_total",
            "Compared document tokens predicted as cached: in the client's order, and boosted.",
            ("order",),
        )
        self._shadow_dropped_tokens = self._counter(
            "ragboost_shadow_dropped_prompt_tokens_total",
            "Shadow mode: document tokens that boosting would have dropped as duplicates.",
        )

    def _declare_arms(self) -> None:
        counters = partial(self._counter, labelnames=("arm",))
        self._arm_prompt_tokens = counters(
            "ragboost_arm_prompt_tokens_total",
            "Prompt tokens of answered requests with documents, boosted or held out (boost.share).",
        )
        self._arm_cached_tokens = counters(
            "ragboost_arm_cached_prompt_tokens_total",
            "Of the prompt tokens of an arm, those that backends read from the prefix cache.",
        )
        self._arm_cost = counters(
            "ragboost_arm_prompt_cost_total", "Cost of these prompts, for models with a price."
        )
        self._arm_ttft = self._histogram(
            "ragboost_arm_time_to_first_token_seconds",
            "Time from the head of a request of an arm to the first byte of its response's body.",
            ("arm",),
            buckets=_SECONDS,
        )

    def _declare_predictions(self) -> None:
        self._prediction_error = self._histogram(
            "ragboost_prediction_error_ratio",
            "Predicted minus reported cached tokens, as a share of the prompt tokens.",
            buckets=_ERRORS,
        )
        self._prediction_precision = self._gauge(
            "ragboost_prediction_precision_ratio",
            "Share of the tokens predicted as cached that were cached, over the last 512 requests.",
        )
        self._prediction_recall = self._gauge(
            "ragboost_prediction_recall_ratio",
            "Share of the cached tokens that were predicted, over the last 512 requests.",
        )

    def watch_streams(self, sync: CacheSync) -> None:
        self.registry.register(StreamCollector(sync))

    def watch(self, family: Callable[..., Metric], name: str, text: str, read: Read) -> None:
        """Show a number that another part keeps."""
        self.registry.register(NumberCollector(family, name, text, read))

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def count_request(self, endpoint: str, model: str, outcome: str, *, seconds: float) -> None:
        if model not in self._models:
            if len(self._models) >= _MAX_MODELS:
                model = "other"
            self._models.add(model)
        self._requests.labels(endpoint, model, outcome).inc(1)
        self._duration.labels(endpoint).observe(seconds)

    async def done(
        self, parsed: ParsedRequest, placed: Placed, sent: SentRequest, answer: Answer
    ) -> None:
        """Count a completion: time, tokens, money, arm."""
        if answer.ended is None:
            return
        usage, ttft_s, dropped, cost = answer.usage, answer.ttft_s, sent.dropped_tokens, None
        if ttft_s is not None:
            result = "boosted" if sent.context is not None else "bypassed"
            self.observe_first_byte(answer.endpoint, result, seconds=ttft_s)
        if usage is not None:
            model = parsed.tenant_key.model
            cost = cost_of(self._prices, model, usage, dropped_tokens=dropped)
            self.count_cost(dropped, cost)
            self.count_usage(usage, bought_tokens=usage.bought_tokens(sent.bought_tokens))
        if parsed.arm is not None and answer.outcome == "ok":
            self.count_arm(parsed.arm, usage, cost, seconds=ttft_s or 0.0)

    def observe_first_byte(self, endpoint: str, result: str, *, seconds: float) -> None:
        self._ttft.labels(endpoint, result).observe(seconds)

    def observe_overhead(self, stage: str, *, seconds: float) -> None:
        self._overhead.labels(stage).observe(seconds)

    def observe_wait(self, *, seconds: float, release: str) -> None:
        self._queue_wait.observe(seconds)
        self._releases.labels(release).inc(1)

    def count_recorded(self, result: str, num: int) -> None:
        self._recorded.labels(result).inc(num)

    def count_bypass(self, reason: str) -> None:
        self._bypass.labels(reason).inc(1)

    def count_detection(self, detection: Detection) -> None:
        self._detections.labels(detection.name, detection.frame).inc(1)

    def count_context(self, context: Context) -> None:
        sent = len(context.documents)
        self._documents.labels("sent").inc(sent)
        self._documents.labels("dropped").inc(len(context.retrieved) - sent)
        self._predicted_tokens.inc(context.predicted_cached_tokens)

    def count_blank(self, num: int) -> None:
        self._documents.labels("blank").inc(num)

    def count_cache_break(self, cause: str, *, lost_tokens: int) -> None:
        self._cache_breaks.labels(cause).inc(1)
        self._broken_tokens.labels(cause).inc(lost_tokens)

    def count_passages(self, saved_bytes: int) -> None:
        self._passage_bytes.inc(saved_bytes)

    def count_orders(self, context: Context, sent: IndexEntry) -> None:
        self._compared_tokens.inc(sum(sent.tokens))
        self._compared_cached_tokens.labels("boosted").inc(context.predicted_cached_tokens)
        self._compared_cached_tokens.labels("sent").inc(sent.cached_tokens)

    def count_shadow(self, context: Context, *, dropped_tokens: int) -> None:
        self.count_context(context)
        self._shadow_dropped_tokens.inc(dropped_tokens)

    def count_arm(
        self, arm: str, usage: Usage | None, cost: PromptCost | None, *, seconds: float
    ) -> None:
        self._arm_ttft.labels(arm).observe(seconds)
        if usage is not None:
            self._arm_prompt_tokens.labels(arm).inc(usage.prompt_tokens)
            self._arm_cached_tokens.labels(arm).inc(usage.cached_tokens or 0)
        if cost is not None:
            self._arm_cost.labels(arm).inc(cost.cost)

    def count_usage(self, usage: Usage, *, bought_tokens: int | None = None) -> None:
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._cached_tokens.inc(usage.cached_tokens or 0)
        if usage.cache_write_tokens:
            self._written_tokens.inc(usage.cache_write_tokens)
        if usage.reused_tokens:
            self._reused_tokens.inc(usage.reused_tokens)
        if usage.recomputed_tokens:
            self._recomputed_tokens.inc(usage.recomputed_tokens)
        if bought_tokens:
            self._bought_tokens.inc(bought_tokens)

    def count_cost(self, dropped_tokens: int, cost: PromptCost | None) -> None:
        self._dropped_tokens.inc(dropped_tokens)
        if cost is not None:
            self._cost.inc(cost.cost)
            self._uncached_cost.inc(cost.uncached)

    def observe_prediction(self, error: float, figures: Fidelity) -> None:
        self._prediction_error.observe(error)
        self._prediction_precision.set(figures.precision)
        self._prediction_recall.set(figures.recall)
