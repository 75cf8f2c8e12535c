"""The pace of a backend, learned from the first bytes of its responses."""

import math

from ragboost.booster.tenants import Tenants
from ragboost.config import Settings
from ragboost.proxy.routing.admission import Admission, RoutingRequest
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.routing.prefill_pace import PrefillPace
from ragboost.proxy.upstream.backends import Backends


class Engine:
    """Computes prompts one after another, at 10,000 tokens a second, or side by side."""

    def __init__(self, *, is_serial: bool) -> None:
        self.pace = PrefillPace()
        settings = Settings()
        backends = Backends.of(settings)
        self.dispatcher = Dispatcher(settings, backends=backends, tenants=Tenants(settings))
        self.backend = backends.all[0]
        self.is_serial = is_serial

    def send(self, tokens: int, now: float, *, is_stream: bool = True) -> Admission:
        request = RoutingRequest(prompt_tokens=tokens, is_stream=is_stream)
        assignment = self.dispatcher.admission(request)
        assignment.assign(self.backend)
        assignment.start()
        self.pace.sent(assignment, now)
        return assignment

    def answer(self, assignment: Admission, now: float, *, is_stream: bool = True) -> None:
        self.pace.begun(assignment, now, is_stream=is_stream)
        assignment.close()

    def serve(self, start: float, *sizes: int) -> float:
        """Serve prompts that arrive together; return when the last one is done."""
        sent = [self.send(tokens, start) for tokens in sizes]
        end = start
        for assignment, tokens in zip(sent, sizes, strict=True):
            end = (end if self.is_serial else start) + tokens / 10_000
            self.answer(assignment, end)
        return end


def trained(*, is_serial: bool) -> Engine:
    engine, now = Engine(is_serial=is_serial), 0.0
    for tokens in (5_000, 10_000, 15_000, 10_000):
        now = engine.serve(now, tokens)
    for _ in range(6):
        now = engine.serve(now, 10_000, 10_000, 10_000)
    return engine


def test_a_serial_engine_is_busy_with_two_prompts_of_usual_length() -> None:
    engine = trained(is_serial=True)
    assert 10_000 < engine.pace.limit_tokens < 20_000
    engine.send(10_000, 100.0)
    assert not engine.pace.is_busy(100.0)
    engine.send(10_000, 100.0)
    assert engine.pace.is_busy(100.0)


def test_an_engine_that_computes_side_by_side_is_never_busy() -> None:
    engine = trained(is_serial=False)
    for _ in range(100):
        engine.send(10_000, 100.0)
    assert not engine.pace.is_busy(100.0)


def test_nothing_is_concluded_from_few_responses_or_from_those_without_a_stream() -> None:
    engine = Engine(is_serial=True)
    for start in range(50):
        sent = [engine.send(10_000, float(start)) for _ in range(3)]
        for i, assignment in enumerate(sent):
            engine.answer(assignment, start + 0.1 * i, is_stream=False)
    assert engine.pace.limit_tokens == math.inf
    engine.serve(100.0, 10_000)
    assert engine.pace.limit_tokens == math.inf
    assert engine.pace.token_s is None


def test_short_prompts_fill_a_step_of_the_engine() -> None:
    engine, now = Engine(is_serial=True), 0.0
    for _ in range(5):
        now = engine.serve(now, 100)
    for _ in range(6):
        now = engine.serve(now, 100, 100, 100)
    for _ in range(80):
        engine.send(100, now)
    assert not engine.pace.is_busy(now)
    engine.send(200, now)
    assert engine.pace.is_busy(now)


def test_a_prompt_without_a_stream_counts_until_it_should_be_computed() -> None:
    engine = trained(is_serial=True)
    engine.send(10_000, 100.0, is_stream=False)
    assert engine.pace.outstanding_tokens(100.5) == 10_000
    assert 100.5 < engine.pace.next_expiry(100.5) < 102.0
    assert engine.pace.next_expiry(102.0) == math.inf  # a timer in the past would spin
    assert engine.pace.outstanding_tokens(102.0) == 0


def test_a_request_that_has_ended_or_moved_is_not_waited_for() -> None:
    engine = trained(is_serial=True)
    ended, moved = engine.send(10_000, 100.0), engine.send(10_000, 100.0)
    ended.close()
    moved.move(Backends.of(Settings()).all[0])
    assert engine.pace.outstanding_tokens(100.0) == 0
