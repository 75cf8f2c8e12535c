"""Replay a trace against a chat server: an open loop, in which each request is sent when it
arrived, time scaled, up to a bound on those that run."""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import numpy as np

from ragboost.errors import BackendError, RequestError
from ragboost.evaluation.endpoint import ChatEndpoint, StreamedAnswer
from ragboost.evaluation.traces import TraceRequest, TraceTexts


class ReplayedRequest(NamedTuple):
    late_s: float  # sent so long after its scaled arrival
    answer: StreamedAnswer | None  # None: it failed
    problem: str = ""


class ReplayResult(NamedTuple):
    """Counts and times that a server reported; shares are of the prompt tokens."""

    requests: int
    failed: int
    problem: str  # of the first that failed
    duration_s: float
    prompt_tokens: int
    cached_tokens: int  # from the prefix cache
    reused_tokens: int  # from stored chunks, not recomputed
    not_computed: float
    ttft_median_s: float  # from sending
    ttft_p95_s: float
    late_p95_s: float  # sent after the scaled arrival, because too many ran

    def as_json(self) -> dict[str, Any]:
        rounded = {k: round(v, 4) for k, v in self._asdict().items() if isinstance(v, float)}
        return {**self._asdict(), **rounded}

    def sentences(self) -> str:
        total = max(1, self.prompt_tokens)
        text = (
            f"{self.requests:,} requests in {self.duration_s:.0f} s: {self.not_computed:.1%} of "
            f"{self.prompt_tokens:,} prompt tokens not computed ({self.cached_tokens / total:.1%} "
            f"cached, {self.reused_tokens / total:.1%} reused); time to first token: median "
            f"{self.ttft_median_s:.3f} s, p95 {self.ttft_p95_s:.3f} s."
        )
        if self.failed:
            text += f"\n{self.failed:,} failed: {self.problem}"
        if self.late_p95_s > 0.1:
            text += (
                f"\n5 % were sent more than {self.late_p95_s:.1f} s late: lower --speed, or raise "
                "--concurrency."
            )
        return text


class TraceReplay:
    """Sends the requests of a trace to one server, `speed` seconds of it per second. Answers are at
    most `max_tokens`, shorter where the trace says so."""

    def __init__(
        self,
        endpoint: ChatEndpoint,
        *,
        speed: float = 1.0,
        concurrency: int = 64,
        max_tokens: int = 16,
        scale: float = 1.0,
    ) -> None:
        if not speed > 0:
            raise RequestError(f"speed must be above 0, got {speed}", param="speed")
        self._endpoint = endpoint
        self._speed = speed
        self._slots = asyncio.Semaphore(concurrency)
        self._max_tokens = max_tokens
        self._texts = TraceTexts(scale=scale)

    def payload(self, request: TraceRequest) -> dict[str, Any]:
        length = min(request.output_tokens or self._max_tokens, self._max_tokens)
        return self._endpoint.body(self._texts.messages(request), max_tokens=max(1, length))

    async def run(
        self, requests: Sequence[TraceRequest], *, on_done: Callable[[int], None] = lambda _: None
    ) -> ReplayResult:
        """Replay requests in order of arrival, and close the endpoint. Raises `BackendError`, the
        first, if all failed."""
        results: list[ReplayedRequest] = []
        started = time.perf_counter()
        async with aclosing(self._endpoint), asyncio.TaskGroup() as tasks:
            for request in requests:
                due = started + request.arrival_s / self._speed
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                await self._slots.acquire()  # the bound holds for what waits, too
                late_s = max(0.0, time.perf_counter() - due)
                tasks.create_task(self._send(request, late_s, results, on_done))
        return _result(results, time.perf_counter() - started)

    async def _send(
        self,
        request: TraceRequest,
        late_s: float,
        results: list[ReplayedRequest],
        on_done: Callable[[int], None],
    ) -> None:
        try:
            answer = await self._endpoint.ask_streamed(self.payload(request))
            results.append(ReplayedRequest(late_s, answer))
        except BackendError as error:
            results.append(ReplayedRequest(late_s, None, str(error)))
        finally:
            self._slots.release()
        on_done(len(results))


def _result(results: Sequence[ReplayedRequest], duration_s: float) -> ReplayResult:
    answers = [each.answer for each in results if each.answer is not None]
    problems = [each.problem for each in results if each.answer is None]
    if not answers:
        raise BackendError(f"no request was answered: {problems[0] if problems else 'no requests'}")
    prompt = sum(answer.usage.prompt_tokens for answer in answers)
    cached = sum(answer.usage.cached_tokens or 0 for answer in answers)
    reused = sum(answer.usage.reused_tokens or 0 for answer in answers)
    times = [answer.ttft_s for answer in answers]
    return ReplayResult(
        len(results),
        len(problems),
        problems[0] if problems else "",
        duration_s,
        prompt,
        cached,
        reused,
        (cached + reused) / max(1, prompt),
        statistics.median(times),
        percentile_95(times),
        percentile_95([each.late_s for each in results]),
    )


def percentile_95(values: Sequence[float]) -> float:
    """Return the least value that 95 % of all do not exceed: never below the median."""
    return float(np.quantile(values, 0.95, method="inverted_cdf"))
