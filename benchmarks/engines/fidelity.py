"""Compare the cached tokens that the proxy predicts with those that a real engine reports.

    python -m benchmarks.engines.fidelity --engine vllm --json
    python -m benchmarks.engines.fidelity --engine sglang --signal usage --cache large
    python -m benchmarks.engines.fidelity --engine vllm --ends counted estimated --concurrency 1 8

Starts the engine with the real proxy in front of it and sends chat requests with documents. The
`CacheFollower`'s prediction when a request is forwarded is compared with the `cached_tokens` of the
response.

`--signal` selects how the proxy learns what is cached: the engine's KV events, reports of the
plug-in inside the engine, or only the `usage` of each response. `--ends` selects how it learns
where documents end in the prompt: from document lengths counted by the engine's `/tokenize`
(`counted`), or from estimates.

`at_rest` covers requests sent while no other request was running and all events had arrived; it
measures residency alone. With `--concurrency 1` every request is at rest. `at_dispatch` covers all
requests; under concurrency it includes the forecast of evictions before a request is scheduled.
Top-level `precision` and `recall` are at rest, `predicted_over_reported` is at dispatch.

Several values of `--ends` or `--concurrency` are cases that share one engine: how the proxy learns
lengths and how many requests are in flight are the client's affairs. Each begins with an empty
cache and a fresh proxy, and prints its own object.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import httpx

from benchmarks.command import make_parser
from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.sync import FidelityTracker
from ragboost.config import Settings
from ragboost.proxy.app import create_app
from ragboost.proxy.serving import serve_in_thread
from scripts.ports import free_port
from scripts.processes import exit_on_sigterm
from tests.engines.arrivals import Arrivals
from tests.engines.servers import EngineServer, missing

_EVENTS: Mapping[str, Literal["zmq", "hook", "off"]] = {
    "events": "zmq",
    "hook": "hook",
    "usage": "off",
}
CACHE_TOKENS = {"small": 4096, "large": 32_768}
DOCUMENTS, PER_REQUEST, LENGTHS = 60, 6, (40, 240)
QUESTION_TOKENS = 40
BLOCK_SIZE = 32
ROUNDS_PER_REST = 2
READY_S, SETTLE_S = 60.0, 60.0
SYSTEM = "Answer from the documents, and name the one that says so."
TEXT = (
    "the lease was signed by a tenant whose name nobody could read in this light because every "
    "page of that contract lists some other party and none of these numbers return a value when "
    "an object with its attributes is called from within another module or class definition"
)
WORDS = TEXT.split()


class Sample(NamedTuple):
    """Predicted and reported cached tokens of one request."""

    predicted: int
    reported: int
    prompt_tokens: int


class Recorder:
    """Keeps a sample of every request that a proxy's tracker records."""

    def __init__(self, tracker: FidelityTracker) -> None:
        self.samples: list[Sample] = []
        self._record = tracker.record
        tracker.record = self.record  # type: ignore[method-assign]

    def record(self, *, predicted: int, reported: int, prompt_tokens: int) -> float:
        error = self._record(predicted=predicted, reported=reported, prompt_tokens=prompt_tokens)
        self.samples.append(Sample(predicted, reported, prompt_tokens))
        return error


class Run:
    """An engine behind its own proxy.

    Attributes:
        samples: one per completed request, in order of completion.
    """

    def __init__(
        self,
        client: httpx.Client,
        *,
        follower: CacheFollower,
        samples: list[Sample],
    ) -> None:
        self.samples = samples
        self._client = client
        self._follower = follower
        self._arrivals = Arrivals(follower, block_size=BLOCK_SIZE)

    def send(self, documents: Sequence[str], question: str) -> None:
        """Send one request through the proxy and wait for its response."""
        body = {
            "model": "tiny",
            "max_tokens": 1,
            "temperature": 0,
            "messages": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": question},
            ],
            "ragboost": {"documents": [{"text": text} for text in documents]},
        }
        response = self._client.post("/v1/chat/completions", json=body)
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code}: {response.text[:500]}")

    def settle(self, num_sent: int, *, is_alone: bool) -> None:
        """Wait until the proxy has processed the usage and the events of completed requests.

        Args:
            num_sent: requests sent since the start.
            is_alone: the last request was the only one in flight, so that the events of all its
                blocks can be waited for; else the follower settles, which takes a second.
        """
        wait(lambda: len(self.samples) >= num_sent, "the usage of each response", seconds=SETTLE_S)
        if not self._follower.streams:
            return
        if is_alone:
            wait(self._has_arrived, "the events of a request", seconds=SETTLE_S)
        else:
            wait(lambda: self._follower.is_settled, "a settled index", seconds=SETTLE_S)

    def _has_arrived(self) -> bool:
        last = self.samples[-1]
        return self._arrivals.are_complete(
            prompt_tokens=last.prompt_tokens, cached_tokens=last.reported
        )

    @property
    def stream(self) -> dict[str, Any]:
        """State and counters of the engine's event stream; empty without events."""
        for stream in self._follower.streams.values():
            return {
                "state": stream.state,
                "num_unknown": stream.mirror.num_unknown,
                **stream.counts,
            }
        return {}


@contextmanager
def started(options: argparse.Namespace) -> Iterator[EngineServer]:
    """Start the engine, which reports to a port that the proxies of all cases take in turn."""
    with EngineServer(
        options.engine,
        cache_tokens=CACHE_TOKENS[options.cache],
        block_size=BLOCK_SIZE,
        events=_EVENTS[options.signal],
        report_url=f"http://127.0.0.1:{options.port}",
    ) as server:
        yield server


@contextmanager
def proxied(server: EngineServer, options: argparse.Namespace, *, ends: str) -> Iterator[Run]:
    """Start a proxy in front of the engine with an empty cache, and wait until it follows that."""
    server.clear_cache()
    tokens = {"ask_backend": ends != "estimated"}
    app = create_app(Settings(backend={"url": server.url}, tokens=tokens))
    sync = app.state.cache_sync
    recorder = Recorder(sync.fidelity)
    (follower,) = sync.followers.values()
    with (
        serve_in_thread(app, port=options.port) as url,
        httpx.Client(base_url=url, timeout=120) as client,
    ):
        if options.signal == "usage":
            wait(lambda: follower.capacity_tokens is not None, "the cache size")
        else:
            wait(lambda: follower.is_exact, "an exact event stream")
        yield Run(
            client,
            follower=follower,
            samples=recorder.samples,
        )


def wait(condition: Callable[[], bool], what: str, *, seconds: float = READY_S) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {seconds:g} s for {what}")
        time.sleep(0.01)


def measure(
    run: Run, contexts: Sequence[Sequence[str]], questions: Sequence[str], *, concurrency: int
) -> dict[str, Any]:
    """Send all requests; after every ROUNDS_PER_REST rounds, send one probe at rest.

    With a concurrency of 1 every request is a probe.
    """
    numbers, at_rest = list(range(len(contexts))), []
    # Enough requests to keep all workers busy, then one probe of the residency.
    step = ROUNDS_PER_REST * concurrency + 1 if concurrency > 1 else 1
    with ThreadPoolExecutor(concurrency) as pool:
        for start in range(0, len(numbers), step):
            together, alone = numbers[start : start + step - 1], numbers[start + step - 1 :][:1]
            list(pool.map(lambda number: run.send(contexts[number], questions[number]), together))
            if together:
                run.settle(start + len(together), is_alone=False)
            for number in alone:
                run.send(contexts[number], questions[number])
                run.settle(number + 1, is_alone=True)
                at_rest.append(run.samples[-1])
    stream = run.stream
    rest, dispatch = figures(at_rest), figures(run.samples)
    return {
        "precision": rest["precision"],
        "recall": rest["recall"],
        "predicted_over_reported": dispatch["predicted_over_reported"],
        "num_probes": len(at_rest),
        "state": str(stream.pop("state", "none")),
        "hit_rate": round(
            sum(sample.reported for sample in run.samples)
            / max(sum(sample.prompt_tokens for sample in run.samples), 1),
            4,
        ),
        "at_rest": rest,
        "at_dispatch": dispatch,
        "stream": stream,
    }


def figures(samples: Sequence[Sample]) -> dict[str, float]:
    predicted = sum(sample.predicted for sample in samples)
    reported = sum(sample.reported for sample in samples)
    both = sum(min(sample.predicted, sample.reported) for sample in samples)
    return {
        "precision": round(both / max(predicted, 1), 4),
        "recall": round(both / max(reported, 1), 4),
        "predicted_over_reported": round(predicted / max(reported, 1), 4),
    }


def make_workload(
    num_requests: int, *, tokens_per_word: float
) -> tuple[list[list[str]], list[str]]:
    """Draw six documents (40 to 240 tokens each) per request by a Zipf law, and its question."""
    dice = random.Random(3)

    def text(num_tokens: int) -> str:
        return " ".join(dice.choices(WORDS, k=max(1, round(num_tokens / tokens_per_word))))

    documents = [text(dice.randint(*LENGTHS)) for _ in range(DOCUMENTS)]
    weights = [1 / (i + 1) for i in range(DOCUMENTS)]
    contexts = []
    for _ in range(num_requests):
        picked: dict[str, None] = {}
        while len(picked) < PER_REQUEST:
            picked[dice.choices(documents, weights)[0]] = None
        contexts.append(list(picked))
    return contexts, [text(QUESTION_TOKENS) + "?" for _ in range(num_requests)]


def tokens_per_word(server_url: str) -> float:
    """Return the average tokens per word by the engine's own tokenizer."""
    body = {"model": "tiny", "prompt": TEXT, "add_special_tokens": False}
    response = httpx.post(f"{server_url}/tokenize", json=body, timeout=60).json()
    return len(response["tokens"]) / len(WORDS)


def parse_options() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--engine", choices=["vllm", "sglang", "embedded"], required=True, help="engine to start"
    )
    parser.add_argument(
        "--signal",
        choices=["events", "hook", "usage"],
        default="events",
        help="source of what is cached",
    )
    parser.add_argument(
        "--ends",
        choices=["counted", "estimated"],
        nargs="+",
        default=["counted"],
        help="source of document ends in the prompt, of each case",
    )
    parser.add_argument("--requests", type=int, default=300, help="requests to send")
    parser.add_argument(
        "--cache", choices=sorted(CACHE_TOKENS), default="small", help="prefix cache size"
    )
    parser.add_argument(
        "--concurrency", type=int, nargs="+", default=[1], help="concurrent requests of each case"
    )
    options = parser.parse_args()
    if reason := missing(options.engine):
        parser.error(reason)
    if options.engine == "embedded" and options.signal == "hook":
        parser.error("--signal hook needs vLLM or SGLang; the embedded engine publishes KV events")
    lengths = {len(options.ends), len(options.concurrency)}
    if len(lengths - {1}) > 1:
        parser.error("give --ends and --concurrency as many values as there are cases, or one")
    options.port = free_port()
    options.cases = [
        (
            options.ends[case % len(options.ends)],
            options.concurrency[case % len(options.concurrency)],
        )
        for case in range(max(lengths))
    ]
    return options


def main() -> None:
    options = parse_options()
    exit_on_sigterm()
    with started(options) as server:
        contexts, questions = make_workload(
            options.requests, tokens_per_word=tokens_per_word(server.url)
        )
        for ends, concurrency in options.cases:
            with proxied(server, options, ends=ends) as run:
                result = measure(run, contexts, questions, concurrency=concurrency)
            named = {"engine": options.engine, "signal": options.signal, "ends": ends}
            row = {**named, "concurrency": concurrency, **result}
            print(json.dumps(row, indent=None if options.json else 2), flush=True)


if __name__ == "__main__":
    main()
