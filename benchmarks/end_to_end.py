"""Hit rate and time to first token of a real engine behind a plain proxy and behind RAGBoost.

usage: python -m benchmarks.end_to_end --engine vllm|sglang|embedded --data PATH
           [--corpus padded|extracts] [--requests 200] [--k 5] [--cache-tokens 400000] [--json]

One engine, one proxy, the same requests one after another, with an emptied cache before each way:

- `plain`: the documents in the order of the retriever;
- `boosted`: the whole batch planned before (requests alone), or turn by turn (conversations);
- `online`: requests alone, each boosted when it comes, with the index following the engine.

Data with conversations is sent turn by turn with a session; both ways resend the history as it was
sent. `hit_rate` is by the engine's own metrics, `prefill_tokens` by the usage of each answer.
"""

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.engine_servers import EngineServer, missing
from benchmarks.workloads import Workload, load_data, read_rows
from ragboost.booster import Booster
from ragboost.config import Settings
from ragboost.proxy.app import create_app
from ragboost.proxy.sync import CacheSync
from ragboost.serving import serve_in_thread
from ragboost.types import Document, Request

HITS = re.compile(
    r"^(?:vllm|ragboost_engine|sglang)[:_](prefix_cache_hits|prefix_cache_queries|"
    r"cached_tokens|prompt_tokens)(?:_total)?(?:\{[^}]*\})? ([0-9.e+]+)$",
    re.MULTILINE,
)
Body = dict[str, Any]


class Sample(NamedTuple):
    """One answered request."""

    ttft_ms: float
    prompt_tokens: int
    cached_tokens: int
    answer: str


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=["vllm", "sglang", "embedded"], required=True)
    parser.add_argument("--data", type=Path, required=True, help="a folder of a retrieval workload")
    parser.add_argument("--corpus", choices=["padded", "extracts"], default="extracts")
    parser.add_argument("--retriever", default="dense")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--k", type=int, default=5, help="documents of a request")
    parser.add_argument("--cache-tokens", type=int, default=400_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    reason = missing(options.engine)
    if reason:
        parser.error(reason)
    workload = load_data(options.data, retriever=options.retriever, k=options.k)
    documents = load_documents(options.data, corpus=options.corpus)
    server = EngineServer(
        options.engine, cache_tokens=options.cache_tokens, events="zmq", max_model_len=16_384
    )
    with server:
        if workload.conversations:
            result = measure_turns(server, workload, documents, num_requests=options.requests)
        else:
            result = measure(server, workload, documents, num_requests=options.requests)
    result = {
        "engine": options.engine,
        "workload": workload.name,
        "corpus": options.corpus,
        "k": options.k,
        "cache_tokens": options.cache_tokens,
        **result,
    }
    if options.json:
        print(json.dumps(result))
    else:
        show(result)


def load_documents(folder: Path, *, corpus: str) -> dict[Any, Document]:
    """The texts by id."""
    pattern = "corpus_padded*.jsonl*" if corpus == "padded" else "corpus.jsonl*"
    return {
        row["id"]: Document(row["text"], id=row["id"], title=row.get("title") or None)
        for row in read_rows(folder, pattern)
    }


def measure(
    server: EngineServer,
    workload: Workload,
    documents: Mapping[Any, Document],
    *,
    num_requests: int,
) -> dict[str, Any]:
    """Send requests that stand alone: plain, planned as a batch, and boosted one by one."""
    count = min(num_requests, len(workload.contexts))
    requests = [
        Request(workload.questions[i], tuple(documents[d] for d in workload.contexts[i]))
        for i in range(count)
    ]
    plan = Booster().boost_batch(requests)
    ways: dict[str, list[Body]] = {
        "plain": [_completion(request, boost=False) for request in requests],
        "boosted": [{"prompt": context.render()} for context in plan.contexts],
        "online": [_completion(request, boost=True) for request in requests],
    }
    figures: dict[str, Any] = {"requests": count}
    medians: dict[str, float] = {}
    for way, bodies in ways.items():
        with emptied(server) as (client, hits):
            samples = [send(client, "/v1/completions", body) for body in bodies]
            figures[way] = summary(samples, hit_rate=hits())
        medians[way] = statistics.median(sample.ttft_ms for sample in samples)
    figures["ttft_ratio"] = round(medians["plain"] / medians["boosted"], 2)
    figures["online_ttft_ratio"] = round(medians["plain"] / medians["online"], 2)
    return figures


def measure_turns(
    server: EngineServer,
    workload: Workload,
    documents: Mapping[Any, Document],
    *,
    num_requests: int,
) -> dict[str, Any]:
    """Send conversations turn by turn, in turns of one another; the first turns count apart."""
    figures: dict[str, Any] = {}
    later: dict[str, float] = {}
    chosen: list[tuple[int, ...]] = []
    for turns in workload.conversations:
        if sum(map(len, chosen)) < num_requests:
            chosen.append(turns)
    for way in ("plain", "boosted"):
        with emptied(server) as (client, hits):
            samples: dict[tuple[int, int], Sample] = {}
            histories: dict[int, list[Body]] = {}
            for turn in range(max(map(len, chosen))):
                for number, turns in enumerate(chosen):
                    if turn < len(turns):
                        body = _turn(workload, documents, turns[turn], way=way)
                        body["messages"] = histories.setdefault(number, []) + body["messages"]
                        body["ragboost"]["session_id"] = f"{way}-{number}"
                        sample = send(client, "/v1/chat/completions", body)
                        answer = {"role": "assistant", "content": sample.answer}
                        histories[number] = [*body["messages"], answer]
                        samples[number, turn] = sample
            figures[way] = summary(list(samples.values()), hit_rate=hits())
        after_first = [sample.ttft_ms for (_, turn), sample in samples.items() if turn]
        later[way] = statistics.median(after_first)
        figures[way]["later_turns_ttft_p50_ms"] = round(later[way], 1)
    figures["requests"] = len(samples)
    ratio = figures["plain"]["ttft_p50_ms"] / figures["boosted"]["ttft_p50_ms"]
    figures["ttft_ratio"] = round(ratio, 2)
    figures["later_turns_ttft_ratio"] = round(later["plain"] / later["boosted"], 2)
    return figures


@contextmanager
def emptied(server: EngineServer) -> Iterator[tuple[httpx.Client, Callable[[], float]]]:
    """A proxy of its own in front of the engine, whose cache is emptied before.

    Yields:
        A client of the proxy, and what tells the engine's hit rate since then.
    """
    server.clear_cache()
    app = create_app(Settings(backend={"url": server.url}))  # type: ignore[arg-type]
    warm = {"prompt": "Warm up the path of a request.", "max_tokens": 1, "model": "tiny"}
    with serve_in_thread(app) as url, httpx.Client(base_url=url, timeout=600) as client:
        for _ in range(3):
            client.post("/v1/completions", json=warm)
        _wait_until_exact(app.state.cache_sync)
        before = _counters(server)

        def hit_rate() -> float:
            time.sleep(0.5)  # engines update their metrics after a step
            hits, queries = (b - a for a, b in zip(before, _counters(server), strict=True))
            return round(hits / max(queries, 1), 4)

        yield client, hit_rate


def _wait_until_exact(sync: CacheSync) -> None:
    end = time.monotonic() + 30
    while not all(follower.is_exact for follower in sync.followers.values()):
        if time.monotonic() > end:
            raise RuntimeError("the engine's events are not followed")
        time.sleep(0.05)


def send(client: httpx.Client, path: str, body: Body) -> Sample:
    """One streamed request; the first event is the first token."""
    body = {
        "model": "tiny",
        "max_tokens": 8 if "messages" in body else 1,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **body,
    }
    started, first, usage, answer = time.perf_counter(), 0.0, {}, ""
    with client.stream("POST", path, json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code}: {response.read()!r}")
        for event in _events(response):
            choice = (event.get("choices") or [{}])[0]
            piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            if not first and (piece or choice.get("finish_reason")):
                first = time.perf_counter()
            answer += piece
            usage = event.get("usage") or usage
    details = usage.get("prompt_tokens_details") or {}
    return Sample(
        (first - started) * 1000,
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=details.get("cached_tokens") or 0,
        answer=answer or "-",
    )


def summary(samples: Sequence[Sample], *, hit_rate: float) -> dict[str, Any]:
    """The figures of one way."""
    ttft = [sample.ttft_ms for sample in samples]
    quantiles = statistics.quantiles(ttft, n=20, method="inclusive")
    prompt = sum(sample.prompt_tokens for sample in samples)
    cached = sum(sample.cached_tokens for sample in samples)
    return {
        "hit_rate": hit_rate,
        "ttft_p50_ms": round(statistics.median(ttft), 1),
        "ttft_p95_ms": round(quantiles[-1], 1),
        "ttft_quartiles_ms": [round(quantiles[i], 1) for i in (4, 9, 14)],
        "prompt_tokens": prompt,
        "prefill_tokens": prompt - cached,
    }


def show(result: Mapping[str, Any]) -> None:
    """Print a table."""
    ways = [way for way in ("plain", "boosted", "online") if way in result]
    title = f"{result['workload']} on {result['engine']}: {result['requests']} requests"
    table = Table("", *ways, title=title)
    for name in result["plain"]:
        table.add_row(name, *(str(result[way][name]) for way in ways))
    console = Console()
    console.print(table)
    console.print({name: value for name, value in result.items() if name.endswith("ratio")})


def _completion(request: Request, *, boost: bool) -> Body:
    documents = [
        {"id": document.id, "title": document.title, "text": document.text}
        for document in request.documents
    ]
    ours = {"documents": documents, "options": {"boost": boost}}
    return {"prompt": request.query, "ragboost": ours}


def _turn(
    workload: Workload, documents: Mapping[Any, Document], position: int, *, way: str
) -> Body:
    chosen = tuple(documents[d] for d in workload.contexts[position] if d in documents)
    request = Request(workload.questions[position], chosen)
    body = _completion(request, boost=way == "boosted")
    return {
        "messages": [{"role": "user", "content": request.query}],
        "ragboost": body["ragboost"],
    }


def _events(response: httpx.Response) -> Iterator[Body]:
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def _counters(server: EngineServer) -> tuple[float, float]:
    """Prompt tokens found in the prefix cache, and looked up."""
    found: dict[str, float] = {}
    for name, value in HITS.findall(server.get("/metrics")):
        found[name] = found.get(name, 0.0) + float(value)
    if "prefix_cache_queries" in found:
        return found.get("prefix_cache_hits", 0.0), found["prefix_cache_queries"]
    return found.get("cached_tokens", 0.0), found.get("prompt_tokens", 0.0)


if __name__ == "__main__":
    main()
