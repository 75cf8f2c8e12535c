"""Declare every metric of the proxy, once. Names and labels, with few values, are public API."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from prometheus_client import Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ragboost.booster.context import Context
from ragboost.cache_sync.sync import CacheSync, Fidelity
from ragboost.proxy.observability.collectors import (
    StreamCollector,
    make_registry,
)
from ragboost.proxy.observability.instruments import Counter, Histogram
from ragboost.proxy.records import NO_SAVINGS, Answer, Savings, SentRequest
from ragboost.requests.parsed_request import ParsedRequest
from ragboost.requests.wires.usage import Usage

CONTENT_TYPE = CONTENT_TYPE_LATEST
_MAX_MODELS = 100
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 600)
_ERRORS = (-1.0, -0.5, -0.2, -0.1, -0.05, -0.01, 0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
_GAPS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_OVERHEAD_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)


class Route(NamedTuple):
    """Requests whose reuse is measured and steered together."""

    endpoint: str
    model: str
    team: str


class Metrics:
    """The metrics of one app, in a registry of its own."""

    def __init__(self, *, is_shadow: bool = False) -> None:
        self.registry = make_registry()
        self.counter = partial(Counter, registry=self.registry)
        self._histogram = partial(Histogram, registry=self.registry)
        self._gauge = gauge = partial(Gauge, registry=self.registry)
        self._models: set[str] = set()
        self._declare_requests()
        self._declare_tokens()
        self._declare_savings("ragboost_shadow" if is_shadow else "ragboost")
        self._declare_predictions()
        self._declare_checks()
        # Gauges that are set when the metrics are read.
        self.index_nodes = gauge("ragboost_index_nodes", "Nodes of all context indexes.")
        self.history_messages = gauge(
            "ragboost_history_messages",
            "Messages kept as they were sent, to be sent again unchanged.",
        )
        # Counter of failed operations.
        self.session_store_failures = self.counter(
            "ragboost_session_store_failures_total",
            "Operations of the session API's store that failed.",
        )
        self._recorded = self.counter(
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
        self._requests = self.counter(
            "ragboost_requests_total",
            "Requests, by how they ended.",
            ("endpoint", "model", "outcome"),
        )
        self._bypass = self.counter(
            "ragboost_bypass_total", "Requests forwarded without boosting, by reason.", ("reason",)
        )
        self._detections = self.counter(
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
            "Time from a completion's head to the first byte of the response's body; `arm`: with "
            "boost.share below 1 and documents boosted or held_out, else empty.",
            ("endpoint", "arm"),
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
        self._releases = self.counter(
            "ragboost_releases_total",
            "Completions sent to their backend by the adaptive waiting room: at_once, or after "
            "a wait alone, planned with others, at max_wait, or because the room was full.",
            ("how",),
        )

    def _declare_tokens(self) -> None:
        self.documents = self.counter(
            "ragboost_documents_total",
            "Documents of boosted requests: sent, dropped as duplicates, or blank (without text).",
            ("result",),
        )
        for result in ("sent", "dropped", "blank"):
            self.documents.labels(result).inc(0)
        self._prompt_tokens = self.counter(
            "ragboost_prompt_tokens_total",
            "Prompt tokens that backends reported, by the arm of a hold-out.",
            ("arm",),
        )
        self._cached_tokens = self.counter(
            "ragboost_cached_prompt_tokens_total",
            "Prompt tokens that backends reported as read from the prefix cache.",
            ("arm",),
        )
        self._written_tokens = self.counter(
            "ragboost_cache_write_prompt_tokens_total",
            "Prompt tokens that backends reported as written to the prefix cache.",
        )
        self._reused_tokens = self.counter(
            "ragboost_reused_prompt_tokens_total",
            "Prompt tokens that backends reported as reused from stored chunks.",
        )
        self._recomputed_tokens = self.counter(
            "ragboost_recomputed_prompt_tokens_total",
            "Prompt tokens of stored chunks that backends reported as computed again.",
        )
        self._bought_tokens = self.counter(
            "ragboost_bought_prompt_tokens_total",
            "Prompt tokens of stored chunks that were computed exactly to become a cached prefix.",
        )
        self._predicted_tokens = self.counter(
            "ragboost_predicted_cached_prompt_tokens_total",
            "Document tokens that the context index predicted as cached.",
        )
        self._cache_breaks = self.counter(
            "ragboost_cache_breaks_total",
            "Requests that are not the continuation of the one before, by cause.",
            ("cause",),
        )
        self._broken_tokens = self.counter(
            "ragboost_cache_break_tokens_total",
            "Prompt tokens that would have been cached without cache breaks, estimated.",
            ("cause",),
        )
        self.passage_bytes = self.counter(
            "ragboost_passage_bytes_total",
            "Bytes of repeated tool results that were replaced by references.",
        )

    def _declare_savings(self, prefix: str) -> None:
        saved = self.counter(
            f"{prefix}_saved_prompt_tokens_total",
            "Prompt tokens that backends did not compute because of RAGBoost, against the request "
            "as the client sent it: by `order` (estimated), `deduplication` and `reuse` of chunks.",
            ("by",),
        )
        extra = self.counter(
            f"{prefix}_extra_prompt_tokens_total",
            "Prompt tokens that backends computed because of RAGBoost, estimated, to subtract from "
            "the saved ones: `hints`, and where the client's `order` would have had more cached.",
            ("by",),
        )
        self._saved = {by: saved.labels(by) for by in ("order", "deduplication", "reuse")}
        self._extra = {by: extra.labels(by) for by in ("order", "hints")}

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

    def _declare_checks(self) -> None:
        route = ("endpoint", "model", "team")
        self._checked = self.counter(
            "ragboost_reuse_checked_total",
            "Answers with reused chunks that were scored once more, exactly.",
            route,
        )
        self._changed = self.counter(
            "ragboost_reuse_changed_total",
            "Checked answers that are not the exact model's greedy answer.",
            route,
        )
        self._gap = self._histogram(
            "ragboost_reuse_gap_nats",
            "By how much the exact log-probability of a checked answer's tokens is lower, on "
            "average: than that of the most likely token (`best`), or than that of the response, "
            "if the client asked for log-probabilities (`first_pass`).",
            ("than",),
            buckets=_GAPS,
        )
        self._check_tokens = self.counter(
            "ragboost_reuse_check_tokens_total", "Tokens that backends computed for checks."
        )
        self._check_seconds = self.counter(
            "ragboost_reuse_check_seconds_total", "Time that checks took."
        )
        self._unchecked = self.counter(
            "ragboost_reuse_unchecked_total",
            "Sampled answers that were not checked, by reason.",
            ("reason",),
        )
        self._reuse_ratio = self._gauge(
            "ragboost_reuse_ratio",
            "Recompute ratio that `reuse.max_changed` has chosen; 1: computed exactly.",
            route,
        )

    def watch_streams(self, sync: CacheSync) -> None:
        self.registry.register(StreamCollector(sync))

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def count_request(self, endpoint: str, model: str, outcome: str, *, seconds: float) -> None:
        self._requests.labels(endpoint, self._known(model), outcome).inc(1)
        self._duration.labels(endpoint).observe(seconds)

    def _known(self, model: str) -> str:
        """Return the label of a model, of which there are not too many."""
        if model not in self._models:
            if len(self._models) >= _MAX_MODELS:
                model = "other"
            self._models.add(model)
        return model

    async def done(self, parsed: ParsedRequest, sent: SentRequest, answer: Answer) -> None:
        """Count a completion: what was done to it, time, tokens, arm."""
        self._overhead.labels("boost").observe(sent.seconds)
        self._detections.labels(parsed.detection.name, parsed.detection.frame).inc(1)
        if sent.bypass is not None:
            self._bypass.labels(sent.bypass.reason).inc(1)
        elif sent.context is not None:
            self.count_context(sent.context)
        if (cache_break := sent.cache_break) is not None:
            self._cache_breaks.labels(str(cache_break.cause)).inc(1)
            self._broken_tokens.labels(str(cache_break.cause)).inc(cache_break.lost_tokens)
        if answer.ended is None:
            return
        arm, usage = parsed.arm or "", answer.usage
        if answer.ttft_s is not None:
            self._ttft.labels(answer.endpoint, arm).observe(answer.ttft_s)
        if usage is not None:
            self._count_usage(usage, arm, bought_tokens=usage.bought_tokens(sent.bought_tokens))
        if answer.outcome == "ok":
            self.count_savings(sent.saved(usage))

    def _count_usage(self, usage: Usage, arm: str, *, bought_tokens: int | None) -> None:
        self._prompt_tokens.labels(arm).inc(usage.prompt_tokens)
        self._cached_tokens.labels(arm).inc(usage.cached_tokens or 0)
        self._written_tokens.inc(usage.cache_write_tokens or 0)
        self._reused_tokens.inc(usage.reused_tokens or 0)
        self._recomputed_tokens.inc(usage.recomputed_tokens or 0)
        self._bought_tokens.inc(bought_tokens or 0)

    def count_savings(self, savings: Savings) -> None:
        if savings is NO_SAVINGS:
            return
        self._saved["order"].inc(max(0.0, savings.order))
        self._saved["deduplication"].inc(savings.deduplication)
        self._saved["reuse"].inc(savings.reuse)
        self._extra["order"].inc(max(0.0, -savings.order))
        self._extra["hints"].inc(savings.hints)

    def observe_wait(self, *, seconds: float, release: str) -> None:
        self._queue_wait.observe(seconds)
        self._releases.labels(release).inc(1)

    def count_recorded(self, result: str, num: int) -> None:
        self._recorded.labels(result).inc(num)

    def count_context(self, context: Context) -> None:
        sent = len(context.documents)
        self.documents.labels("sent").inc(sent)
        self.documents.labels("dropped").inc(len(context.retrieved) - sent)
        self._predicted_tokens.inc(context.predicted_cached_tokens)

    def observe_prediction(self, error: float, figures: Fidelity) -> None:
        self._prediction_error.observe(error)
        self._prediction_precision.set(figures.precision)
        self._prediction_recall.set(figures.recall)

    def count_unchecked(self, reason: str) -> None:
        self._unchecked.labels(reason).inc(1)

    def count_checked(
        self,
        route: Route,
        *,
        is_changed: bool,
        tokens: int,
        seconds: float,
        gaps: Mapping[str, Sequence[float]],
    ) -> None:
        names = (route.endpoint, self._known(route.model), route.team)
        self._checked.labels(*names).inc(1)
        self._changed.labels(*names).inc(is_changed)
        self._check_tokens.inc(tokens)
        self._check_seconds.inc(seconds)
        for kind, values in gaps.items():
            if values:
                self._gap.labels(kind).observe(sum(values) / len(values))

    def set_reuse_ratio(self, route: Route, ratio: float | None) -> None:
        names = (route.endpoint, self._known(route.model), route.team)
        self._reuse_ratio.labels(*names).set(1.0 if ratio is None else ratio)
