"""The in-engine hook's reporter and the proxy's receiver, over real HTTP."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ragboost.cache_sync.event_stream import EventStream, StreamState
from ragboost.cache_sync.report_receiver import ReportReceiver
from ragboost.engine_hooks.reporter import STREAM_VARIABLE, URL_VARIABLE, Reporter, make_reporter
from ragboost.engine_hooks.reports import REPORT_PATH
from ragboost.errors import ContextIndexError
from tests.cache_sync.toy import ToyCache
from tests.eventually import eventually

DOCUMENTS = [[1000 * i + j for j in range(8 + i % 3)] for i in range(8)]


class Proxy:
    """An HTTP server with the one route, which can hang, fail and forget."""

    def __init__(self) -> None:
        self.receiver = ReportReceiver()
        self.gate = threading.Event()
        self.gate.set()
        self.failures = 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                proxy.gate.wait()
                status, answer = 200, b""
                if proxy.failures:
                    proxy.failures -= 1
                    status = 503
                else:
                    assert self.path == REPORT_PATH
                    answer = proxy.receiver.receive(body, now=time.monotonic())
                self.send_response(status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.gate.set()
        self.server.shutdown()
        self.server.server_close()


class Engine:
    """A toy cache that hands each step's events to a reporter."""

    def __init__(self, url: str, **limits: int) -> None:
        self.cache = ToyCache(num_blocks=30)
        self.reporter = Reporter(url, stream="toy/0", **limits)
        self.steps = 0

    def serve(self, requests: int) -> None:
        for _ in range(requests):
            self.steps += 1
            picks = [(self.steps * k) % len(DOCUMENTS) for k in (1, 3, 5)]
            self.cache.run([t for i in picks for t in DOCUMENTS[i]], f"r{self.steps}", again=1)
            events = self.cache.take().events
            if events:
                self.reporter.put(events)

    def is_equal(self, stream: EventStream) -> bool:
        try:
            stream.mirror.check_integrity()
            return stream.mirror.copies() == Counter(self.cache.blocks.values())
        except (ContextIndexError, RuntimeError):  # a report is being applied
            return False


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.close()


@pytest.fixture
def engine(proxy: Proxy) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(**limits: int) -> Engine:
        made.append(Engine(proxy.url, **limits))
        return made[-1]

    yield make
    proxy.gate.set()
    for each in made:
        each.reporter.close()


def settled(proxy: Proxy, engine: Engine) -> EventStream:
    eventually(lambda: "toy/0" in proxy.receiver.streams)
    stream = proxy.receiver.streams["toy/0"]
    eventually(lambda: stream.state is StreamState.EXACT and engine.is_equal(stream))
    return stream


def test_the_proxy_knows_the_engines_cache_and_requests(
    proxy: Proxy, engine: Callable[..., Engine]
) -> None:
    toy = engine()
    toy.serve(100)
    stream = settled(proxy, toy)
    toy.serve(100)
    settled(proxy, toy)
    assert stream.mirror.num_requests > 0
    assert stream.counts["num_restarts"] == 0


def test_a_restarted_proxy_gets_everything_again(
    proxy: Proxy, engine: Callable[..., Engine]
) -> None:
    toy = engine()
    toy.serve(300)
    settled(proxy, toy)
    proxy.receiver = ReportReceiver()
    toy.serve(1)
    settled(proxy, toy)


def test_a_restarted_engine_is_noticed_by_its_epoch(
    proxy: Proxy, engine: Callable[..., Engine]
) -> None:
    first = engine()
    first.serve(20)
    settled(proxy, first)
    first.reporter.close()
    second = engine()
    second.serve(3)
    settled(proxy, second)


def test_a_proxy_that_hangs_or_fails_gets_what_it_missed_later(
    proxy: Proxy, engine: Callable[..., Engine]
) -> None:
    toy = engine()
    proxy.gate.clear()
    toy.serve(200)
    proxy.failures = 2
    proxy.gate.set()
    settled(proxy, toy)
    assert toy.reporter.num_dropped == 0


def test_an_answer_lost_in_the_middle_of_a_replay_is_asked_for_again(
    proxy: Proxy, engine: Callable[..., Engine]
) -> None:
    toy = engine()
    toy.serve(400)
    settled(proxy, toy)
    proxy.receiver = ReportReceiver()
    toy.serve(1)
    eventually(lambda: "toy/0" in proxy.receiver.streams)
    proxy.failures = 1
    toy.serve(1)
    settled(proxy, toy)


def test_batches_that_the_queue_could_not_hold_leave_the_stream_degraded(
    proxy: Proxy, engine: Callable[..., Engine]
) -> None:
    toy = engine(max_queued=5)
    toy.serve(5)
    settled(proxy, toy)
    toy.serve(60)
    eventually(lambda: not toy.reporter._queue)
    assert toy.reporter.num_dropped > 0
    toy.serve(4)
    stream = proxy.receiver.streams["toy/0"]
    eventually(lambda: stream.state is StreamState.DEGRADED)
    toy.cache.clear()
    toy.serve(1)
    settled(proxy, toy)  # an emptied cache is known again


def test_a_log_that_no_longer_reaches_back_leaves_a_new_proxy_degraded(
    proxy: Proxy, engine: Callable[..., Engine]
) -> None:
    toy = engine(max_kept=10)
    toy.serve(100)
    eventually(lambda: not toy.reporter._queue)
    proxy.receiver = ReportReceiver()
    toy.serve(1)
    eventually(lambda: "toy/0" in proxy.receiver.streams)
    stream = proxy.receiver.streams["toy/0"]
    eventually(lambda: stream.state is StreamState.DEGRADED)
    assert stream.counts["num_batches"] <= 10


def test_the_environment_decides_whether_and_where_to_report(
    monkeypatch: pytest.MonkeyPatch, proxy: Proxy
) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    assert make_reporter(0) is None
    monkeypatch.setenv(URL_VARIABLE, proxy.url)
    monkeypatch.setenv(STREAM_VARIABLE, "replica-3")
    reporter = make_reporter(2)
    assert reporter is not None
    assert reporter.stream == "replica-3/2"
    eventually(lambda: "replica-3/2" in proxy.receiver.streams)  # an empty report
    eventually(lambda: proxy.receiver.streams["replica-3/2"].state is StreamState.EXACT)
    reporter.close()
