"""Every metric of the proxy, declared once. Names and labels are public API.

Labels never hold document, session or request ids, and at most `_MAX_MODELS` model names.
"""

from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from ragboost.booster.booster import Booster
from ragboost.cache_sync.fidelity import ERROR_BOUNDS, Fidelity
from ragboost.cache_sync.usage import Usage
from ragboost.context import Context

M = TypeVar("M", Counter, Histogram)

CONTENT_TYPE = CONTENT_TYPE_LATEST
_MAX_MODELS = 100
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 600)
_OVERHEAD_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)


class _ByLabels(Generic[M]):
    """The children of a metric by their labels: prometheus-client looks them up under a lock."""

    def __init__(self, metric: M) -> None:
        self._metric: M = metric
        self._children: dict[tuple[str, ...], M] = {}

    def of(self, *labels: str) -> M:
        """The child with these labels; their number is the caller's affair."""
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = self._metric.labels(*labels)
        return child


class Metrics:
    """The metrics of one app, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._models: set[str] = set()
        self._declare_requests(self.registry)
        self._declare_tokens(self.registry)
        self._declare_shadow(self.registry)
        self._declare_state(self.registry)
        self._declare_predictions(self.registry)

    def _declare_requests(self, registry: CollectorRegistry) -> None:
        requests = Counter(
            "ragboost_requests_total",
            "Requests answered or refused.",
            ("endpoint", "model", "outcome"),
            registry=registry,
        )
        duration = Histogram(
            "ragboost_request_duration_seconds",
            "From the request's head to the last byte of the answer.",
            ("endpoint",),
            buckets=_SECONDS,
            registry=registry,
        )
        ttft = Histogram(
            "ragboost_time_to_first_token_seconds",
            "From the request's head to the first byte of a completion's answer.",
            ("endpoint", "result"),
            buckets=_SECONDS,
            registry=registry,
        )
        overhead = Histogram(
            "ragboost_overhead_seconds",
            "Time that the proxy itself spends on a request, by stage.",
            ("stage",),
            buckets=_OVERHEAD_SECONDS,
            registry=registry,
        )
        bypass = Counter(
            "ragboost_bypass_total",
            "Requests forwarded without boosting, by reason.",
            ("reason",),
            registry=registry,
        )
        self._requests, self._bypass = _ByLabels(requests), _ByLabels(bypass)
        self._duration, self._ttft = _ByLabels(duration), _ByLabels(ttft)
        self._overhead = _ByLabels(overhead)
        self._queue_wait = Histogram(
            "ragboost_queue_wait_seconds",
            "Time that a completion waits for its turn.",
            buckets=_OVERHEAD_SECONDS,
            registry=registry,
        )

    def _declare_tokens(self, registry: CollectorRegistry) -> None:
        documents = Counter(
            "ragboost_documents_total",
            "Documents of boosted requests: sent, or dropped because the payload has them already.",
            ("result",),
            registry=registry,
        )
        self._sent_documents = documents.labels("sent")
        self._dropped_documents = documents.labels("dropped")
        self._prompt_tokens = Counter(
            "ragboost_prompt_tokens_total",
            "Prompt tokens that the backend reported.",
            registry=registry,
        )
        self._cached_tokens = Counter(
            "ragboost_cached_prompt_tokens_total",
            "Prompt tokens that the backend took from its prefix cache.",
            registry=registry,
        )
        self._predicted_tokens = Counter(
            "ragboost_predicted_cached_prompt_tokens_total",
            "Document tokens that the context index expected in the prefix cache.",
            registry=registry,
        )
        self._passage_bytes = Counter(
            "ragboost_passage_bytes_total",
            "Bytes of repeated tool results that were replaced by references.",
            registry=registry,
        )

    def _declare_shadow(self, registry: CollectorRegistry) -> None:
        self._shadow_cached_tokens = Counter(
            "ragboost_shadow_cached_prompt_tokens_total",
            "Shadow mode: document tokens expected in the prefix cache, as the client ordered them "
            "(sent) and as boosting would have (boosted).",
            ("order",),
            registry=registry,
        )
        self._shadow_dropped_tokens = Counter(
            "ragboost_shadow_dropped_prompt_tokens_total",
            "Shadow mode: document tokens that boosting would not have sent again.",
            registry=registry,
        )

    def _declare_state(self, registry: CollectorRegistry) -> None:
        self.index_nodes = Gauge(
            "ragboost_index_nodes", "Nodes of all context indexes.", registry=registry
        )
        self.backend_up = Gauge(
            "ragboost_backend_up",
            "Whether a backend gets requests.",
            ("backend",),
            registry=registry,
        )
        self.backend_running = Gauge(
            "ragboost_backend_running",
            "Requests sent to a backend whose answers are not over.",
            ("backend",),
            registry=registry,
        )
        self.queue_depth = Gauge(
            "ragboost_queue_depth", "Requests in the waiting room.", registry=registry
        )
        self.sessions = Gauge(
            "ragboost_sessions", "Conversations that are remembered.", registry=registry
        )

    def _declare_predictions(self, registry: CollectorRegistry) -> None:
        self._prediction_error = Histogram(
            "ragboost_prediction_error_ratio",
            "Predicted less reported cached tokens, as a share of the prompt tokens.",
            buckets=ERROR_BOUNDS,
            registry=registry,
        )
        self._prediction_precision = Gauge(
            "ragboost_prediction_precision_ratio",
            "Of the tokens predicted as cached, the share that was, over the last 512 requests.",
            registry=registry,
        )
        self._prediction_recall = Gauge(
            "ragboost_prediction_recall_ratio",
            "Of the tokens that were cached, the share predicted, over the last 512 requests.",
            registry=registry,
        )

    def watch(self, collector: Collector) -> None:
        """Show what somebody else counts, too."""
        self.registry.register(collector)

    def render(self) -> bytes:
        """All metrics in Prometheus text format."""
        return generate_latest(self.registry)

    def count_request(self, endpoint: str, model: str, outcome: str, *, seconds: float) -> None:
        """Count an answered or refused request."""
        if model not in self._models:
            if len(self._models) >= _MAX_MODELS:
                model = "other"
            self._models.add(model)
        self._requests.of(endpoint, model, outcome).inc()
        self._duration.of(endpoint).observe(seconds)

    def observe_first_byte(self, endpoint: str, result: str, *, seconds: float) -> None:
        """Record the time to a completion's first byte; `result` is `boosted` or `bypassed`."""
        self._ttft.of(endpoint, result).observe(seconds)

    def observe_overhead(self, stage: str, *, seconds: float) -> None:
        """Record the proxy's own time."""
        self._overhead.of(stage).observe(seconds)

    def observe_wait(self, *, seconds: float) -> None:
        """Record how long a completion waited for its turn."""
        self._queue_wait.observe(seconds)

    def count_bypass(self, reason: str) -> None:
        """Count a request that is forwarded without boosting."""
        self._bypass.of(reason).inc()

    def count_context(self, context: Context) -> None:
        """Count a boosted request's documents."""
        sent = len(context.documents)
        self._sent_documents.inc(sent)
        self._dropped_documents.inc(len(context.retrieved) - sent)
        self._predicted_tokens.inc(context.predicted_cached_tokens)

    def count_passages(self, saved_bytes: int) -> None:
        """Count what references to earlier tool results saved."""
        self._passage_bytes.inc(saved_bytes)

    def count_shadow(self, context: Context, original: Booster, *, preamble: str = "") -> None:
        """Count what boosting would have saved.

        Args:
            context: what would have been sent.
            original: mirrors the prefix cache as it is without boosting.
            preamble: names the text before the documents.
        """
        self.count_context(context)
        self._shadow_cached_tokens.labels("boosted").inc(context.predicted_cached_tokens)
        if context.turn <= 1:
            sent = original.boost(context.query, context.retrieved, preamble=preamble)
            self._shadow_cached_tokens.labels("sent").inc(sent.predicted_cached_tokens)
        kept = sum(original.tokens.count_documents(context.documents))
        given = sum(original.tokens.count_documents(context.retrieved))
        self._shadow_dropped_tokens.inc(given - kept)

    def count_usage(self, usage: Usage) -> None:
        """Count the tokens that the backend reported."""
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._cached_tokens.inc(usage.cached_tokens or 0)

    def observe_prediction(self, error: float, figures: Fidelity) -> None:
        """Record how a prediction of cached tokens came true, and the rolling figures."""
        self._prediction_error.observe(error)
        self._prediction_precision.set(figures.precision)
        self._prediction_recall.set(figures.recall)
