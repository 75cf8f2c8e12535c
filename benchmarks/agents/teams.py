"""Measure a chain and a tree of agents over shared documents (RAGBoost section 7.1).

    python -m benchmarks.agents.teams --engine simulated --data PATH --json
    python -m benchmarks.agents.teams --engine vllm --data PATH --questions 12

Of the 15 documents retrieved for a question, each is read by one agent. In the chain an agent gets
the note of the one before it, in the tree all agents read at once; a manager joins the notes. Four
arms on the same engines, one after another, each with an empty cache and a proxy of its own:

- `plain`: agents have instructions of their own, agent i reads the document of rank i, and the
  proxy balances load without regard to caches;
- `prefix_routing`: the same requests, each sent to the engine that caches most of it;
- `agent_routing`: a document returns to the agent that has read it, as in the paper;
- `ragboost`: what all agents are told is in front of the document, who reads it behind it, so that
  any agent's prefix serves all.

Tokens are those that the engines report in `usage`. A simulated engine (`FakeEngine`) has an exact
prefix cache and computes so many tokens a second. docs/lab/agents.md.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.agents.roles import ARMS, Arm, Team, chain, tree
from benchmarks.agents.simulated_engine import SimulatedEngine
from benchmarks.command import make_parser, report, show_columns
from benchmarks.datasets.retrieval import load_requests
from benchmarks.engines.served import proxied, start_all
from ragboost.types import Request
from scripts.http_client import Answer, Body, ask
from scripts.processes import exit_on_sigterm
from tests.engines.servers import EngineServer, missing

MAX_MODEL_LEN = 8_192
TOPOLOGIES = {"chain": chain, "tree": tree}
SHAPE = ("agents", "at_once", "note_tokens", "cache_tokens", "model")
Engine = EngineServer | SimulatedEngine


def main() -> None:
    options = parse(sys.argv[1:])
    exit_on_sigterm()
    requests = load(options)
    with start_engines(options) as engines:
        result = measure(engines, requests, options)
    report(result, options, show)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; exit with an error if the engine is not installed."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--engine", choices=["simulated", "vllm", "sglang", "embedded"], required=True
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of a retrieval workload")
    parser.add_argument(
        "--corpus", choices=["extracts", "padded"], default="extracts", help="document texts"
    )
    parser.add_argument("--retriever", default="dense", help="retrieval run to use")
    parser.add_argument("--topology", choices=["both", *TOPOLOGIES], default="both")
    parser.add_argument("--questions", type=int, default=150, help="questions, at most")
    parser.add_argument("--agents", type=int, default=15, help="agents, and documents each time")
    parser.add_argument("--engines", type=int, default=2, help="engines behind the proxy")
    parser.add_argument("--at-once", type=int, default=8, help="questions answered concurrently")
    parser.add_argument("--note-tokens", type=int, default=8, help="tokens that an agent writes")
    parser.add_argument("--cache-tokens", type=int, default=400_000, help="of each engine")
    parser.add_argument("--model", choices=["tiny", "wide"], default="tiny")
    options = parser.parse_args(arguments)
    if options.engine != "simulated" and (reason := missing(options.engine)):
        parser.error(reason)
    for name in ("questions", "agents", "engines", "at_once", "note_tokens"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return options


def load(options: argparse.Namespace) -> list[Request]:
    """Read the questions, each with a document per agent."""
    _, requests = load_requests(
        options.data, retriever=options.retriever, k=options.agents, corpus=options.corpus
    )
    return requests[: options.questions]


@contextmanager
def start_engines(options: argparse.Namespace) -> Iterator[Sequence[Engine]]:
    """Start the engines that all arms use; stop them on exit."""
    with ExitStack() as stack:
        if options.engine == "simulated":
            yield [
                stack.enter_context(SimulatedEngine(capacity_tokens=options.cache_tokens))
                for _ in range(options.engines)
            ]
            return
        engines = [
            EngineServer(
                options.engine,
                cache_tokens=options.cache_tokens,
                max_model_len=MAX_MODEL_LEN,
                shape=options.model,
            )
            for _ in range(options.engines)
        ]
        stack.enter_context(start_all(engines))
        yield engines


def measure(
    engines: Sequence[Engine], requests: Sequence[Request], options: argparse.Namespace
) -> dict[str, Any]:
    """Answer the questions in every arm and return the figures."""
    chosen = list(TOPOLOGIES) if options.topology == "both" else [options.topology]
    result: dict[str, Any] = {
        "engine": options.engine,
        "engines": len(engines),
        "workload": f"{options.data.name}/{options.retriever}",
        "corpus": options.corpus,
        "questions": len(requests),
        **{name: getattr(options, name) for name in SHAPE},
    }
    for topology in chosen:
        figures = {
            name: run_arm(engines, requests, options, topology=topology, arm=arm)
            for name, arm in ARMS.items()
        }
        result[topology] = {**figures, "ratios": ratios(figures)}
    return result


def run_arm(
    engines: Sequence[Engine],
    requests: Sequence[Request],
    options: argparse.Namespace,
    *,
    topology: str,
    arm: Arm,
) -> dict[str, Any]:
    """Answer all questions through a new proxy, on engines with empty caches."""
    answer = TOPOLOGIES[topology]
    backends = [{"url": engine.url, "name": f"engine-{i}"} for i, engine in enumerate(engines)]
    settings = {"backends": backends, "router": {"policy": arm.policy}}
    with (
        proxied(engines, settings) as url,
        httpx.Client(base_url=url, timeout=600) as client,
    ):

        def send(path: str, body: Body) -> Answer:
            return ask(client, path, {"model": "tiny", **body})

        team = Team(send, num_agents=options.agents, arm=arm, note_tokens=options.note_tokens)
        started = time.monotonic()
        with ThreadPoolExecutor(options.at_once) as pool:
            list(pool.map(lambda request: answer(team, request), requests))
        seconds = time.monotonic() - started
    print(f"{topology}, {arm.name}: {seconds:.0f} s", file=sys.stderr, flush=True)
    return {**team.figures(), **rates(team, len(requests), seconds)}


def rates(team: Team, questions: int, seconds: float) -> dict[str, Any]:
    """Return the throughput."""
    return {
        "seconds": round(seconds, 1),
        "questions_per_s": round(questions / seconds, 3),
        "prompt_tokens_per_s": round(team.prompt_tokens / seconds),
    }


def ratios(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return each arm's gain over `plain`: throughput, and prefill tokens saved."""
    plain = figures["plain"]
    return {
        name: {
            "throughput": round(arm["questions_per_s"] / max(plain["questions_per_s"], 1e-9), 2),
            "prefill": round(plain["prefill_tokens"] / max(arm["prefill_tokens"], 1), 2),
        }
        for name, arm in figures.items()
        if name != "plain"
    }


def show(result: Mapping[str, Any]) -> None:
    for topology in TOPOLOGIES.keys() & result.keys():
        title = f"{topology} of {result['agents']} agents on {result['engines']} {result['engine']}"
        figures = {arm: result[topology][arm] for arm in ARMS}
        show_columns(figures, f"{title}, {result['questions']} questions")
        print(result[topology]["ratios"])


if __name__ == "__main__":
    main()
