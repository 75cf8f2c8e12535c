"""Measure live what chunk reuse does to answers: a sampled share of them is scored once more by the
exact model, on the same backend while that has nothing else to do, and a budget steers the ratio.

Knows requests, answers and backends. Whatever goes wrong is counted; no client waits for it.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from ragboost.config import ReuseSettings
from ragboost.errors import BackendError, ConfigError
from ragboost.proxy.observability.metrics import Metrics, Route
from ragboost.proxy.quality.controller import LADDER, RatioController, lower_bound, upper_bound
from ragboost.proxy.quality.given_answer import AnswerTap, GivenAnswer, UncheckedError
from ragboost.proxy.records import Answer, SentRequest
from ragboost.proxy.upstream.backend import Backend
from ragboost.proxy.upstream.engines import Engines
from ragboost.requests.headers import CREDENTIALS, RawHeaders
from ragboost.requests.parsed_request import ParsedRequest
from ragboost.types import Document
from ragboost.util.bounded_map import BoundedMap

logger = logging.getLogger(__name__)

CHECK = "/chunk_reuse/check"
_NO_LEVEL = -1
_MAX_WAITING, _MAX_WAITING_BYTES = 64, 16 << 20
_MAX_ROUTES, _MAX_DOCUMENTS, _DOCUMENT_TTL_S = 256, 10_000, 86_400.0
_LOOK_AGAIN_S, _TIMEOUT_S = 0.05, 60.0
# Neutral values of fields with which an answer is not simply the most likely one.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_tokens": (0,),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "echo": (False,),
    "use_beam_search": (False,),
    **dict.fromkeys(("logit_bias", "bad_words", "allowed_token_ids", "stop_token_ids"), ({}, [])),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),
    **dict.fromkeys(("structured_outputs", "json_schema", "regex", "ebnf", "functions"), ()),
}


class _Scores(msgspec.Struct):
    """The exact model's scores of each token of an answer."""

    logprobs: list[float]
    best: list[float]  # of the most likely token in its place
    is_end: bool  # the most likely token behind the answer ends it
    computed_tokens: int


class _Check(NamedTuple):
    backend: Backend
    body: bytes
    headers: RawHeaders
    route: Route
    level: int | None  # of the controller, at which it was answered
    documents: Sequence[str]  # keys of those that may have been reused
    answer: GivenAnswer


@dataclass
class CheckedAnswers:
    """Counts of a document, or of a route."""

    checked: int = 0
    changed: int = 0

    def add(self, *, is_changed: bool) -> None:
        self.checked += 1
        self.changed += is_changed


@dataclass
class RouteQuality(CheckedAnswers):
    """Checked answers of a route, and what steers its ratio."""

    controller: RatioController | None = None

    def describe(self) -> dict[str, Any]:
        low = high = None
        if self.checked:
            low = lower_bound(self.changed, self.checked, miss=0.025)
            high = upper_bound(self.changed, self.checked, miss=0.025)
        share = self.changed / self.checked if self.checked else None
        interval = {"share": share, "low": low, "high": high}
        ratio = self.controller.ratio if self.controller else None
        steered = {"is_steered": self.controller is not None, "ratio": ratio}
        return {"checked": self.checked, "changed": self.changed, **interval, **steered}


@dataclass
class _Waiting:
    checks: deque[_Check] = field(default_factory=deque)
    num_bytes: int = 0
    has_more: asyncio.Event = field(default_factory=asyncio.Event)


class ErrorBar:
    """The checks of one app; `open` and `close` belong to its event loop."""

    def __init__(
        self,
        settings: ReuseSettings,
        engines: Engines,
        metrics: Metrics,
        *,
        rng: random.Random | None = None,
    ) -> None:
        if settings.max_changed is not None and not settings.check:
            raise ConfigError("reuse.max_changed needs answers that are checked: set reuse.check")
        self._share, self._budget = settings.check, settings.max_changed
        self._engines, self._metrics = engines, metrics
        self._rng = rng or random.Random()
        self._routes: BoundedMap[Route, RouteQuality] = BoundedMap(max_entries=_MAX_ROUTES)
        self._documents: BoundedMap[tuple[str, str, str], CheckedAnswers] = BoundedMap(
            max_entries=_MAX_DOCUMENTS, ttl_s=_DOCUMENT_TTL_S
        )
        self._waiting = _Waiting()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if self._share:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @property
    def num_waiting(self) -> int:
        """Checks that wait or run."""
        return len(self._waiting.checks)

    def of_team(self, team: str) -> list[dict[str, Any]]:
        """Return the figures of a team's routes, as JSON values."""
        return [
            {"endpoint": route.endpoint, "model": route.model, **quality.describe()}
            for route, quality in self._routes.items()
            if route.team == team
        ]

    def steer(self, request: ParsedRequest) -> ParsedRequest:
        """Return a request with its route's ratio, and whether its answer is to be checked."""
        if not self._share or request.found is None or request.arm == "held_out":
            return request
        reuse = request.options.get("reuse")
        if not (request.has_stream_options and self._engines.may_reuse(reuse)):
            return request
        options, level, is_checked = request.options, _NO_LEVEL, self._rng.random() < self._share
        ratio = self._engines.recompute_ratio(reuse)
        if self._budget is not None and ratio is not None:
            level = self._controller(_route(request), ratio).level
            if level == 0:
                is_probe = self._rng.random() < min(self._share, self._budget)
                is_checked = is_probe and _hindrance(request) is None
                level = int(is_checked)
            own = ratio if isinstance(reuse, dict) and "ratio" in reuse else 0.0
            options = {**options, "reuse": _with_ratio(reuse, LADDER[level], least=own)}
            if own > (LADDER[level] or 0):
                level = _NO_LEVEL  # its answer says nothing of this ratio
        if is_checked and (hindrance := _hindrance(request)) is not None:
            self._metrics.count_unchecked(hindrance)
            is_checked = False
        return replace(request, options=options, check_level=level if is_checked else None)

    def not_reused(self, request: ParsedRequest, documents: Sequence[Document]) -> frozenset[str]:
        """Return the keys of documents that change answers too often to be reused: more often than
        the budget allows, and than its other documents do, by the bound of their share."""
        if self._budget is None or not len(self._documents):
            return frozenset()
        route = _route(request)
        quality = self._routes.peek(route) or RouteQuality()
        most = max(self._budget, quality.changed / max(1, quality.checked))
        found = []
        for document in documents:
            seen = self._documents.peek((route.model, route.team, document.key))
            if seen and lower_bound(seen.changed, seen.checked, miss=0.01) > most:
                found.append(document.key)
        return frozenset(found)

    def tap(self, parsed: ParsedRequest, sent: SentRequest) -> AnswerTap | None:
        """Return what reads the response of a request whose answer is to be checked."""
        is_checked = parsed.check_level is not None
        return AnswerTap() if is_checked and sent.context is not None else None

    def done(
        self, parsed: ParsedRequest, sent: SentRequest, tap: AnswerTap, answer: Answer
    ) -> None:
        """Queue the check of an answer that has ended, if chunks were reused for it."""
        if answer.usage is not None and not answer.usage.reused_tokens:
            return
        try:
            check = self._make(parsed, sent, tap, answer)
        except UncheckedError as reason:
            self._metrics.count_unchecked(str(reason))
            return
        waiting = self._waiting
        waiting.checks.append(check)
        waiting.num_bytes += len(check.body)
        waiting.has_more.set()

    def _make(
        self, parsed: ParsedRequest, sent: SentRequest, tap: AnswerTap, answer: Answer
    ) -> _Check:
        if answer.usage is None or answer.ended is None or answer.outcome != "ok":
            raise UncheckedError("aborted")
        given = tap.read()
        if given.has_ended and parsed.body.fields.get("stop"):
            raise UncheckedError("stop_string")
        parts = {
            "request": msgspec.Raw(sent.body),
            "answer": given.text,
            "prompt_tokens": answer.usage.prompt_tokens,
            "completion_tokens": given.num_tokens,
        }
        body, waiting = msgspec.json.encode(parts), self._waiting
        is_full = waiting.num_bytes + len(body) > _MAX_WAITING_BYTES
        if is_full or len(waiting.checks) >= _MAX_WAITING:
            raise UncheckedError("busy")
        headers = [header for header in sent.headers if header[0] in CREDENTIALS]
        level, documents = parsed.check_level, self._reused(parsed, sent)
        return _Check(answer.backend, body, headers, _route(parsed), level, documents, given)

    def _reused(self, parsed: ParsedRequest, sent: SentRequest) -> list[str]:
        context = sent.context
        assert context is not None, "a check of a request without documents"
        num_exact = context.index_entry.num_exact if context.index_entry is not None else 0
        behind, others = context.documents[num_exact:], self.not_reused(parsed, context.documents)
        return [document.key for document in behind if document.key not in others]

    def _controller(self, route: Route, ratio: float) -> RatioController:
        assert self._budget is not None, "nothing to control"
        quality = self._quality(route)
        if quality.controller is None:
            quality.controller = RatioController(self._budget, ratio=ratio)
            self._metrics.set_reuse_ratio(route, quality.controller.ratio)
        return quality.controller

    def _quality(self, route: Route) -> RouteQuality:
        quality = self._routes.get(route)
        if quality is None:
            quality = RouteQuality()
            self._routes.put(route, quality)
        return quality

    async def _run(self) -> None:
        """Check one answer at a time, of a backend at which this proxy has no request."""
        waiting = self._waiting
        while True:
            await waiting.has_more.wait()
            idle = [c for c in waiting.checks if not (c.backend.load.assigned or _elsewhere(c))]
            if not idle:
                await asyncio.sleep(_LOOK_AGAIN_S)
                continue
            await self._check(idle[0])
            waiting.checks.remove(idle[0])
            waiting.num_bytes -= len(idle[0].body)
            if not waiting.checks:
                waiting.has_more.clear()

    async def _check(self, check: _Check) -> None:
        begin = perf_counter()
        try:
            status, data = await check.backend.ask(
                CHECK, body=check.body, headers=check.headers, timeout_s=_TIMEOUT_S
            )
            scores = _read(status, data, check.answer)
        except (BackendError, UncheckedError) as error:
            is_known = isinstance(error, UncheckedError)
            self._metrics.count_unchecked(str(error) if is_known else "failed")
            logger.debug("an answer of backend %s is not checked: %s", check.backend.name, error)
            return
        self._note(check, scores, seconds=perf_counter() - begin)

    def _note(self, check: _Check, scores: _Scores, *, seconds: float) -> None:
        given, route = check.answer, check.route
        gaps = [best - logprob for best, logprob in zip(scores.best, scores.logprobs, strict=True)]
        is_changed = max(gaps) > 0 or (given.has_ended and not scores.is_end)
        pairs = zip(given.logprobs, scores.logprobs, strict=False)  # no end in the second
        first_pass = [logprob - exact for logprob, exact in pairs]
        self._metrics.count_checked(
            route,
            is_changed=is_changed,
            tokens=scores.computed_tokens,
            seconds=seconds,
            gaps={"best": gaps, "first_pass": first_pass},
        )
        quality = self._quality(route)
        quality.add(is_changed=is_changed)
        if quality.controller is not None and check.level is not None:
            before = quality.controller.ratio
            quality.controller.add(is_changed=is_changed, level=check.level)
            if (ratio := quality.controller.ratio) != before:
                shown = "computed exactly" if ratio is None else f"recompute ratio {ratio:g}"
                logger.info("%s of model %s: now %s", route.endpoint, route.model, shown)
                self._metrics.set_reuse_ratio(route, ratio)
        for key in check.documents:
            name = (route.model, route.team, key)
            seen = self._documents.get(name) or CheckedAnswers()
            seen.add(is_changed=is_changed)
            self._documents.put(name, seen)


def _route(request: ParsedRequest) -> Route:
    endpoint = "chat" if "messages" in request.body.fields else "completions"
    return Route(endpoint, request.tenant_key.model, request.tenant_key.team)


def _hindrance(request: ParsedRequest) -> str | None:
    """Return why the answer of a request need not be the most likely one; None: it is."""
    fields = request.body.fields
    if fields.get("temperature") != 0:
        return "sampled"
    values = {name: fields.get(name) for name in _NEUTRAL}
    is_plain = all(v is None or v in _NEUTRAL[name] for name, v in values.items())
    return None if is_plain else "constrained"


def _with_ratio(reuse: Any, ratio: float | None, *, least: float) -> Any:
    if ratio is None:
        return "exact"
    return {**(reuse if isinstance(reuse, dict) else {}), "ratio": max(ratio, least)}


def _elsewhere(check: _Check) -> bool:
    return check.backend.elsewhere.running > 0


def _read(status: int, data: bytes, answer: GivenAnswer) -> _Scores:
    if status == 409:
        raise UncheckedError("other_tokens")
    try:
        scores = msgspec.json.decode(data if status == 200 else b"", type=_Scores)
    except msgspec.MsgspecError:
        raise UncheckedError("failed") from None
    num = len(scores.logprobs)
    if not num or num != len(scores.best) or answer.num_tokens - num not in (0, 1):
        raise UncheckedError("failed")
    return scores
