"""Compare prefill and decode throughput of the embedded engine, `transformers serve` and vLLM.

    python -m benchmarks.engines.throughput --json
    python -m benchmarks.engines.throughput --only embedded --prompt-words 50 --tokens 8 --repeats 1

All serve the same model in float32 with one computing thread, on the CPU, one server at a time.
Every prompt is new, so that no prefix is cached. Prefill is timed by answers of one token; decoding
by longer answers, less the time of the prefill. Token counts are those that each server reports.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks.command import model_directory
from ragboost.config.model_directory import model_name
from scripts.processes import exit_on_sigterm
from tests.engines.servers import EngineServer, made_model, missing

SERVERS = ("embedded", "transformers", "vllm")
SAMPLING = {"temperature": 0, "ignore_eos": True}  # transformers takes no `ignore_eos`


class _OwnEngine(EngineServer):
    def _embedded(self) -> list[str]:
        return [*super()._embedded(), "--model", str(self.model)]


class _TransformersServer(EngineServer):
    def _embedded(self) -> list[str]:
        command = [str(Path(sys.executable).parent / "transformers"), "serve", str(self.model)]
        options = ["--host", "127.0.0.1", "--port", str(self.port)]
        return [*command, *options, "--device", "cpu", "--dtype", "float32"]

    def _is_ready(self) -> bool:
        """Ask for its health: its list of models needs a cache of downloads."""
        try:
            return httpx.get(f"{self.url}/health", timeout=5).is_success
        except httpx.TransportError:
            return False


class Answered(NamedTuple):
    """Seconds and token counts of requests that were sent together."""

    seconds: float
    prompt_tokens: int
    completion_tokens: int


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", type=model_directory, help="name or directory; default: a random tiny Llama"
    )
    parser.add_argument("--only", choices=SERVERS, action="append", help="servers to measure")
    parser.add_argument("--prompt-words", type=int, default=700, help="words of a prompt")
    parser.add_argument("--tokens", type=int, default=128, help="tokens to generate")
    parser.add_argument("--together", type=int, default=8, help="requests in a batch of answers")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="accepted for symmetry; always JSON")
    args = parser.parse_args()
    exit_on_sigterm()
    model = (args.model or made_model("embedded", "tiny")).resolve()
    results: dict[str, Any] = {}
    for name in args.only or SERVERS:
        reason = _missing(name)
        results[name] = reason or measure(name, model, args)
    print(json.dumps({"model": model_name(model), "prompt_words": args.prompt_words, **results}))


def _missing(name: str) -> str | None:
    """Return why a server cannot be started; None if it can."""
    if name == "transformers" and find_spec("accelerate") is None:
        return "`transformers serve` needs accelerate: pip install accelerate"
    return missing("vllm") if name == "vllm" else None


def measure(name: str, model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Start a server, and return the medians of its throughput in tokens per second."""
    kinds: dict[str, type[EngineServer]] = {
        "embedded": _OwnEngine,
        "transformers": _TransformersServer,
        "vllm": EngineServer,
    }
    server = kinds[name](
        "vllm" if name == "vllm" else "embedded",
        events="off",
        dtype="float32",
        model=model,
        cache_tokens=65_536,
    )
    served_name = str(model) if name == "transformers" else "tiny"
    numbers = random.Random(1)
    with server, httpx.Client(base_url=server.url, timeout=600) as client:

        def ask(count: int, tokens: int) -> Answered:
            bodies = [
                {
                    "model": served_name,
                    "prompt": " ".join(
                        f"word{numbers.randrange(10_000)}" for _ in range(args.prompt_words)
                    ),
                    "max_tokens": tokens,
                    **(SAMPLING if name != "transformers" else {"temperature": 0}),
                }
                for _ in range(count)
            ]
            return _send(client, bodies)

        ask(1, 2)  # loads and warms up
        alone = [(ask(1, 1), ask(1, args.tokens)) for _ in range(args.repeats)]
        batch = [
            (ask(args.together, 1), ask(args.together, args.tokens)) for _ in range(args.repeats)
        ]
    return {
        "prompt_tokens": alone[0][0].prompt_tokens,
        "prefill_tokens_per_s": _median(
            [short.prompt_tokens / short.seconds for short, _ in alone]
        ),
        "decode_tokens_per_s": _median([_decoded(short, long, 1) for short, long in alone]),
        f"decode_tokens_per_s_{args.together}_requests": _median(
            [_decoded(short, long, args.together) for short, long in batch]
        ),
        "generated_tokens": sum(long.completion_tokens for _, long in (*alone, *batch)),
    }


def _send(client: httpx.Client, bodies: list[dict[str, Any]]) -> Answered:
    def post(body: dict[str, Any]) -> dict[str, Any]:
        response = client.post("/v1/completions", json=body)
        response.raise_for_status()
        usage: dict[str, Any] = response.json()["usage"]
        return usage

    begin = time.perf_counter()
    with ThreadPoolExecutor(len(bodies)) as pool:
        usages = list(pool.map(post, bodies))
    seconds = time.perf_counter() - begin
    prompt, completion = (
        sum(usage[f"{kind}_tokens"] for usage in usages) for kind in ("prompt", "completion")
    )
    return Answered(seconds, prompt, completion)


def _decoded(short: Answered, long: Answered, count: int) -> float | None:
    """Return tokens per second behind the first of each answer; None if none can be told apart."""
    seconds, tokens = long.seconds - short.seconds, long.completion_tokens - count
    return tokens / seconds if seconds > 0 and tokens > 0 else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 1) if known else None


if __name__ == "__main__":
    main()
