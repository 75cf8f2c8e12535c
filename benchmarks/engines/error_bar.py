"""Compare the estimate of `reuse.check` with exact answers to all requests, on a real engine.

    python -m benchmarks.engines.error_bar --engine vllm --requests 500 --check 0.1 --json
    python -m benchmarks.engines.error_bar --engine embedded --model smollm2-135m --json

A client asks about documents made by rule, four of 24 a request, through the proxy, and waits while
an answer is checked. Afterwards each request with reused tokens is asked exactly. `share`, `low`
and `high` are the estimate and its interval at 95 %, `true_share` what it estimates: answers whose
text is not the exact one; `unchecked` the answers that were sampled and could not be checked, by
reason. `check_tokens` and `check_s` are the cost. `path` are the ratios of the controller by number
of checks, with `--max-changed`.
"""

import argparse
import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.command import make_parser, model_directory, report
from ragboost.config import EngineSettings, Settings
from ragboost.engine import create_engine_app
from ragboost.proxy.app import create_app
from ragboost.proxy.serving import serve_in_thread
from tests.engines.servers import EngineServer
from tests.eventually import eventually

_TOWNS = ("Lund", "Bergen", "Turku", "Vaasa", "Odense", "Tartu", "Narvik", "Visby")
_NAMES = ("Tilda Brask", "Ines Okafor", "Maren Varga", "Ruth Moreau", "Yara Drago", "Selma Quist")
_PETS = ("Odin", "Biscuit", "Pepper", "Hazel", "Clover", "Mocha", "Juno", "Otis")
_DRAIN_S = 600.0


def make_documents(rng: random.Random) -> list[dict[str, str]]:
    return [
        {
            "id": f"{kind}-{town}",
            "text": f"The {kind} of {town} was built in {rng.randint(1650, 1950)}. Its master is "
            f"{rng.choice(_NAMES)}, whose dog is called {rng.choice(_PETS)}. It has "
            f"{rng.randint(2, 9)} gates, and {rng.randint(10, 99)} people work there.",
        }
        for town in _TOWNS
        for kind in ("harbour", "mill", "observatory")
    ]


def make_bodies(num: int, *, max_tokens: int) -> list[dict[str, Any]]:
    rng = random.Random(0)
    documents = make_documents(rng)
    bodies = []
    for _ in range(num):
        given = rng.sample(documents, 4)
        kind, _, town = rng.choice(given)["id"].partition("-")
        question = f"What is the dog of the master of the {kind} of {town} called?"
        bodies.append(
            {
                "model": "tiny",
                "messages": [{"role": "user", "content": question}],
                "max_tokens": max_tokens,
                "temperature": 0,
                "ragboost": {"documents": given, "reuse": "approx"},
            }
        )
    return bodies


class Run:
    """Requests through one proxy in front of one engine."""

    def __init__(self, url: str, state: Any) -> None:
        self._client, self._bar = httpx.Client(base_url=url, timeout=600), state
        self.path: list[tuple[int, float | None]] = []

    def ask(self, body: dict[str, Any]) -> tuple[str, int]:
        """Return an answer and its reused tokens, once a check of it has ended."""
        answer = self._client.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        fields = answer.json()
        eventually(lambda: not self._bar.num_waiting, within_s=_DRAIN_S)
        for route in self._client.get("/dashboard/data").json()["reuse_checks"]:
            if route["is_steered"] and (not self.path or self.path[-1][1] != route["ratio"]):
                self.path.append((route["checked"], route["ratio"]))
        reused = fields["usage"].get("ragboost", {}).get("reused", 0)
        return fields["choices"][0]["message"]["content"], reused

    def metrics(self) -> dict[str, float]:
        families = text_string_to_metric_families(self._client.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples]
        reasons = {s.labels["reason"]: s.value for s in samples if "_unchecked_total" in s.name}
        sums = {
            s.name: s.value for s in samples if "_check_" in s.name or "_gap_nats_sum" in s.name
        }
        return {**sums, **{f"unchecked {reason}": value for reason, value in reasons.items()}}

    def quality(self) -> dict[str, Any]:
        routes = self._client.get("/dashboard/data").json()["reuse_checks"]
        return routes[0] if routes else {}


def measure(args: argparse.Namespace, engine_url: str) -> dict[str, Any]:
    reuse = {"check": args.check, "max_changed": args.max_changed}
    settings = Settings(
        backend={"url": engine_url},
        reuse=reuse,
        # The exact request has the prompt of the one that reused chunks.
        ordering={"enabled": False},
        dedup={"enabled": False},
        hints={"order": False, "location": False},
        tokens={"ask_backend": False},
    )
    bodies = make_bodies(args.requests, max_tokens=args.max_tokens)
    app = create_app(settings)
    with serve_in_thread(app) as url:
        eventually(lambda: app.state.engines.is_supported)
        run, begin = Run(url, app.state.error_bar), time.perf_counter()
        answers = [run.ask(body) for body in bodies]
        seconds, quality, metrics = time.perf_counter() - begin, run.quality(), run.metrics()
        changed = total = 0
        for body, (text, reused) in zip(bodies, answers, strict=True):
            if reused:
                total += 1
                exact = {**body, "ragboost": {**body["ragboost"], "reuse": "exact"}}
                changed += run.ask(exact)[0] != text
    return {
        **quality,
        "true_share": round(changed / max(1, total), 4),
        "reusing": total,
        "requests": args.requests,
        "seconds": round(seconds, 1),
        **{name: round(value, 3) for name, value in metrics.items()},
        "path": run.path,
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--engine", choices=("vllm", "sglang", "embedded"), default="vllm")
    parser.add_argument("--model", type=model_directory, help="default: a small random model")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--check", type=float, default=0.1)
    parser.add_argument("--max-changed", type=float)
    parser.add_argument("--ratio", type=float, default=0.15)
    parser.add_argument("--max-tokens", type=int, default=8)
    args = parser.parse_args()
    chunks = {"reuse": "approx", "ratio": args.ratio}
    with ExitStack() as stack:
        if args.engine == "embedded":
            model = args.model or Path("ragboost-tiny")
            served = {"served_model_name": "tiny", "chunks": chunks}
            app = create_engine_app(EngineSettings(model=str(model), **served))
            engine_url = stack.enter_context(serve_in_thread(app))
        else:
            server = EngineServer(args.engine, chunks=chunks, dtype="float32", model=args.model)
            engine_url = stack.enter_context(server).url
        report(measure(args, engine_url), args, print)


if __name__ == "__main__":
    main()
