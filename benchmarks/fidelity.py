"""How truly the index follows a real engine's prefix cache, signal by signal.

usage: python -m benchmarks.fidelity --engine vllm|sglang|embedded [--signal events|hook]
           [--requests 300] [--cache small|large] [--concurrency 1|8] [--trace FILE] [--json]

Each request is ordered by an index that follows the engine, sent to the engine's real server, and
what the answer reports as cached is compared with what was predicted when it was sent:

- `mirror`: the tokens of the prompt, looked up in the mirror of the engine's blocks;
- `documents`: the context index, set through request ids, without tokenising: what the proxy does;
- `usage`: the model of the paper (LRU on tokens), corrected by the usage of each answer;
- `lru`: that model alone.

At the top, all of `documents`: `precision` and `recall` of cached tokens for probes sent while no
other request runs (the residency itself), and `predicted_over_reported` over all requests as
predicted at dispatch (with several at once, also a guess at what others will evict meanwhile).
"""

import argparse
import json
import random
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple, TextIO

from benchmarks.engine_servers import EngineServer, missing
from benchmarks.report_route import report_route
from ragboost.booster.residency import Residency
from ragboost.cache_sync.documents import DocumentTracker, document_ends
from ragboost.cache_sync.in_flight import InFlight
from ragboost.cache_sync.prefix_mirror import Changes
from ragboost.cache_sync.stream import EventStream, StreamState
from ragboost.cache_sync.subscriber import Subscriber
from ragboost.cache_sync.usage import read_usage
from ragboost.config import OrderingSettings
from ragboost.engine_hooks.reports import ReportReceiver
from ragboost.index import ContextIndex, EvictionForecast, IndexEntry
from ragboost.ordering import order_documents

CACHE_TOKENS = {"small": 4096, "large": 32_768}
HEADER = [5, 6, 7, 8, 9]
DOCUMENTS, PER_REQUEST, LENGTHS = 60, 6, (40, 240)
QUESTION_TOKENS = 40
BLOCK_SIZE = 32
ROUNDS_PER_REST = 2
SETTLE_S = 5.0
SIGNALS = ("mirror", "documents", "usage", "lru")


class Score:
    """Sums over requests of one signal."""

    def __init__(self) -> None:
        self.predicted = self.reported = self.both = 0

    def add(self, predicted: int, reported: int) -> None:
        self.predicted += predicted
        self.reported += reported
        self.both += min(predicted, reported)

    @property
    def figures(self) -> dict[str, float]:
        return {
            "precision": round(self.both / max(self.predicted, 1), 4),
            "recall": round(self.both / max(self.reported, 1), 4),
            "predicted_over_reported": round(self.predicted / max(self.reported, 1), 4),
        }


class Sent(NamedTuple):
    """A request on its way."""

    name: str
    prompt: list[int]
    predicted: dict[str, int]
    recorded: IndexEntry
    num_in_flight: int
    num_in_flight_tokens: int
    kept_share: float
    at: float


class Follower:
    """Three indexes and their predictions; `on_change` keeps the first one true."""

    def __init__(
        self, server: EngineServer, tokens: dict[Hashable, int], *, num_requests: int
    ) -> None:
        dice = random.Random(7)
        self.ids = {d: [dice.randrange(10, 4000) for _ in range(n)] for d, n in tokens.items()}
        self.tokens = tokens
        self.questions = [
            [dice.randrange(10, 4000) for _ in range(QUESTION_TOKENS)] for _ in range(num_requests)
        ]
        self.server = server
        self.stream: EventStream | None = None
        self.tracker = DocumentTracker()
        self.indexes = {
            "documents": ContextIndex(),
            "usage": ContextIndex(capacity_tokens=server.cache_tokens),
            "lru": ContextIndex(capacity_tokens=server.cache_tokens),
        }
        self.lock = threading.RLock()
        self.pressure, self.in_flight = EvictionForecast(), InFlight()
        self.in_flight.capacity_tokens = server.cache_tokens
        self.unsettled: list[Sent] = []
        self.heard: set[str] = set()
        self.residency = Residency(self.indexes["documents"], self.lock)
        self.residency.follow(
            is_exact=True, capacity_tokens=server.cache_tokens, eviction_forecast=self.pressure
        )

    def on_change(self, _: str, changes: Changes) -> None:
        index = self.indexes["documents"]
        with self.lock:
            if changes.is_cleared:
                index.clear()
                self.in_flight.clear()
            for context in self.tracker.read(changes, block_size=self.server.block_size):
                lengths = [self.tokens[d] for d in context.documents]
                whole = sum(lengths[: context.num_resident])
                self.residency.set_resident(
                    context.documents,
                    lengths,
                    num_documents=context.num_resident,
                    cut_tokens=context.resident_tokens - whole,
                )
            for name, tokens in changes.resident_tokens.items():
                self.heard.add(name)
                self.in_flight.stored(name, tokens)
            self._press()

    def send(self, number: int, retrieved: Sequence[Hashable]) -> Sent:
        """Order a request, predict what is cached of it, and record it as sent."""
        assert self.stream is not None
        name = f"r{number}"
        with self.lock:
            lengths = [self.tokens[d] for d in retrieved]
            order = order_documents(
                self.indexes["documents"], retrieved, lengths, settings=OrderingSettings()
            )
            documents = [retrieved[i] for i in order.permutation]
            lengths = [self.tokens[d] for d in documents]
            recorded = {
                signal: index.record_leading(documents, lengths)
                for signal, index in self.indexes.items()
            }
            predicted = {
                signal: self._blocks(each.cached_tokens) for signal, each in recorded.items()
            }
            waiting = len(self.in_flight), self.in_flight.num_tokens, self.pressure.retained_share
            self.in_flight.sent(
                name,
                prompt_tokens=len(HEADER) + sum(lengths) + QUESTION_TOKENS,
                cached_tokens=predicted["documents"],
                block_size=self.server.block_size,
            )
            self._press()
            ends = document_ends(lengths, tokens_before=len(HEADER))
            self.tracker.sent(name, documents, ends=ends, tokens_before=len(HEADER))
        prompt = [*HEADER, *(t for d in documents for t in self.ids[d]), *self.questions[number]]
        try:
            predicted["mirror"] = self.stream.mirror.match_tokens(prompt)
        except RuntimeError:  # the listener changed it under our eyes
            predicted["mirror"] = predicted["documents"]
        return Sent(name, prompt, predicted, recorded["documents"], *waiting, time.monotonic())

    def _press(self) -> None:
        if self.stream is None:
            return
        is_tree, resident = self.stream.mirror.is_tree, self.stream.mirror.num_resident_tokens
        turn = self.in_flight.next_turn(resident_tokens=resident, is_batched=is_tree)
        self.pressure.update(*turn, is_batched=is_tree)

    def settled(self) -> None:
        """All that was sent is answered, and its events have come."""
        with self.lock:
            for sent in self.unsettled:
                self.in_flight.done(sent.name)
                self.residency.drop_unconfirmed(sent.recorded.documents)
            self.unsettled.clear()
            self._press()

    def answered(self, sent: Sent, reported: int) -> None:
        """Correct the model by what the engine reported."""
        self.unsettled.append(sent)
        with self.lock:
            self.in_flight.answered(sent.name, prompt_tokens=None)
            self._press()
        surplus = sent.predicted["usage"] - reported
        if surplus > 0:
            with self.lock:
                self.indexes["usage"].evict(surplus)

    def _blocks(self, document_tokens: int) -> int:
        size = self.server.block_size
        return (len(HEADER) + document_tokens) // size * size if document_tokens else 0


@contextmanager
def following(server: EngineServer, follower: Follower, receiver: ReportReceiver) -> Iterator[None]:
    """Bring the engine's stream to the follower, by events or by the hook's reports."""
    if server.events == "hook":
        server.complete([1] * 64, "first")
        wait(lambda: bool(receiver.streams))
        follower.stream = next(iter(receiver.streams.values()))
        wait(lambda: follower.stream is not None and follower.stream.state is StreamState.EXACT)
        yield
        return
    with Subscriber([server.source], on_change=follower.on_change) as subscriber:
        stream = follower.stream = subscriber.streams[server.source.name]
        server.complete([1] * 64, "first")  # its blocks say what kind of cache it is
        wait(lambda: stream.state is StreamState.EXACT and stream.mirror.num_resident_tokens > 0)
        yield


def wait(condition: Callable[[], bool], *, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("the engine's stream did not become exact")
        time.sleep(0.01)


def settle(stream: EventStream, follower: Follower) -> None:
    """Wait for the events of answered requests, which follow their answers: each stores a block."""
    end, count = time.monotonic() + SETTLE_S, -1
    while any(sent.name not in follower.heard for sent in follower.unsettled):
        if time.monotonic() > end:
            break
        time.sleep(0.01)
    while count != stream.status().num_batches:
        count = stream.status().num_batches
        time.sleep(0.06)


def measure(
    server: EngineServer,
    follower: Follower,
    contexts: Sequence[Sequence[Hashable]],
    *,
    concurrency: int,
    trace: TextIO | None = None,
) -> dict[str, object]:
    """Send all requests; after some rounds one alone, when nothing else runs and all events are in.

    One at a time, every request is such a probe.
    """
    at_rest = {signal: Score() for signal in SIGNALS}
    at_dispatch = {signal: Score() for signal in SIGNALS}
    guard, in_order = threading.Lock(), threading.Lock()

    def serve(number: int, *, is_resting: bool) -> None:
        with in_order:  # as a proxy's event loop sends: in the order of its predictions
            sent = follower.send(number, contexts[number])
            answer = server.begin(sent.prompt, sent.name)
        usage = read_usage(answer())
        reported = (usage and usage.cached_tokens) or 0
        follower.answered(sent, reported)
        with guard:
            if trace is not None:
                trace.write(trace_line(sent, reported) + "\n")
            for signal in SIGNALS:
                at_dispatch[signal].add(sent.predicted[signal], reported)
                if is_resting:
                    at_rest[signal].add(sent.predicted[signal], reported)

    assert follower.stream is not None
    numbers, num_probes = list(range(len(contexts))), 0
    # So many together that all workers are busy, then one alone as a probe of what is resident.
    step = ROUNDS_PER_REST * concurrency + 1 if concurrency > 1 else 1
    with ThreadPoolExecutor(concurrency) as pool:
        for start in range(0, len(numbers), step):
            together, alone = numbers[start : start + step - 1], numbers[start + step - 1 :][:1]
            list(pool.map(lambda number: serve(number, is_resting=False), together))
            settle(follower.stream, follower)
            follower.settled()
            for number in alone:
                serve(number, is_resting=True)
                num_probes += 1
    status = follower.stream.status()
    reported = at_dispatch["mirror"].reported
    return {
        "precision": at_rest["documents"].figures["precision"],
        "recall": at_rest["documents"].figures["recall"],
        "predicted_over_reported": at_dispatch["documents"].figures["predicted_over_reported"],
        "num_probes": num_probes,
        "state": str(status.state),
        "hit_rate": round(reported / sum(map(len_of(follower), contexts)), 4),
        "at_rest": {signal: score.figures for signal, score in at_rest.items()},
        "at_dispatch": {signal: score.figures for signal, score in at_dispatch.items()},
        "stream": {k: v for k, v in status._asdict().items() if k != "state"},
    }


def trace_line(sent: Sent, reported: int) -> str:
    return json.dumps(
        {
            "request": sent.name,
            "at": round(sent.at, 4),
            "took": round(time.monotonic() - sent.at, 4),
            "prompt_tokens": len(sent.prompt),
            "reported": reported,
            **sent.predicted,
            "in_flight": sent.num_in_flight,
            "in_flight_tokens": sent.num_in_flight_tokens,
            "kept_share": round(sent.kept_share, 4),
            "documents_sent": sent.recorded.documents,
        }
    )


def len_of(follower: Follower) -> Callable[[Sequence[Hashable]], int]:
    frame = len(HEADER) + QUESTION_TOKENS
    return lambda documents: frame + sum(follower.tokens[d] for d in documents)


def make_workload(num_requests: int) -> tuple[list[list[Hashable]], dict[Hashable, int]]:
    """Documents drawn by a Zipf law, and their lengths."""
    dice = random.Random(3)
    tokens: dict[Hashable, int] = {f"d{i}": dice.randint(*LENGTHS) for i in range(DOCUMENTS)}
    names, weights = list(tokens), [1 / (i + 1) for i in range(DOCUMENTS)]
    contexts = []
    for _ in range(num_requests):
        picked: dict[Hashable, None] = {}
        while len(picked) < PER_REQUEST:
            picked[dice.choices(names, weights)[0]] = None
        contexts.append(list(picked))
    return contexts, tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=["vllm", "sglang", "embedded"], required=True)
    parser.add_argument("--signal", choices=["events", "hook"], default="events")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--cache", choices=sorted(CACHE_TOKENS), default="small")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--trace", type=argparse.FileType("w"), help="one line per request")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    reason = missing(options.engine)
    if reason:
        parser.error(reason)
    if options.signal == "hook" and options.engine == "embedded":
        parser.error("the embedded engine publishes events; the hook is for vLLM and SGLang")
    contexts, tokens = make_workload(options.requests)
    receiver_of: list[Follower] = []
    receiver = ReportReceiver(
        on_change=lambda name, changes: receiver_of[0].on_change(name, changes)
    )
    with report_route(receiver) as url:
        server = EngineServer(
            options.engine,
            cache_tokens=CACHE_TOKENS[options.cache],
            block_size=BLOCK_SIZE,
            events="zmq" if options.signal == "events" else "hook",
            report_url=url,
        )
        follower = Follower(server, tokens, num_requests=options.requests)
        receiver_of.append(follower)
        with server, following(server, follower, receiver):
            figures = measure(
                server,
                follower,
                contexts,
                concurrency=options.concurrency,
                trace=options.trace,
            )
    figures = {"engine": options.engine, "signal": options.signal, **figures}
    print(json.dumps(figures) if options.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
