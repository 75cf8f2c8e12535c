"""Measure chunk reuse end to end: a RAG workload through proxy and engine.

    python -m benchmarks.chunks.end_to_end --json
    python -m benchmarks.chunks.end_to_end --parts workload --requests 16
    python -m benchmarks.chunks.end_to_end --engine vllm --data PATH --requests 30 --json
    python -m benchmarks.chunks.end_to_end --engine simulated --data PATH --json

On the embedded engine, `workload`: eight documents per question, drawn by popularity from Python's
own documentation, in random order; streamed, on a random 16-layer model (its answers are
meaningless). plain: the client writes the prompt; exact: the proxy orders and de-duplicates;
approx: as exact, and chunks outside the cached prefix are reused. Each mode has an engine and a
proxy of its own; every request is sent to all modes before the next one. `tokens` counts prompt
tokens by source; the run fails if the counts do not add up. TTFT and processor time are in
milliseconds; `ttft_ratio` and `cpu_ratio` are medians over requests. `tasks`: accuracy of the
project's reference model on its tasks (`served_tasks`). `itl`: inter-token latency of a running
response, alone and while another request is prefilled.

On another engine, or with `--data` (`engine_replay`), the same requests or those of a retrieval
workload: `plain`;
`order`, ordered on arrival; `reuse`, the retriever's order with the documents' stored KV reused and
a share of it recomputed; `both_rent`; and `both`, which buys prefixes. `ragboost precompute` has
stored the documents before. Reuse computes two layers of all tokens, so it takes a model of more
than a few: `--model deep`. `--engine simulated` counts tokens only, of the whole workload.
`--arms`: some of them. `--hot N`: only requests with one of the N most frequent documents, as a
sample of what returns. `--disjoint`: no two requests share a document. `--one-by-one`: one engine
at a time, arm after arm, for runs that count tokens; side by side their times are of the same load.
`--fill always`: stored chunks are reused whatever that takes, as runs that count tokens of a small
model need it. `--keep FILE`: the figures so far, rewritten while it runs, of a run that may be cut.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from benchmarks.chunks.engine_replay import ARMS, measure_engine
from benchmarks.chunks.served import Served, build_model, draw, request_body, serve
from benchmarks.chunks.served_tasks import build_task_model, measure_tasks
from benchmarks.chunks.simulated import simulate_arms
from benchmarks.command import make_parser, report, show_columns
from ragboost.chunk_cache.selection import DEFAULT_POLICY
from ragboost.config import EngineSettings, FormatSettings, IndexSettings, Settings
from ragboost.demo.workload import WorkloadTurn
from scripts.http_client import SOURCES, Answer
from scripts.processes import exit_on_sigterm
from tests.engines.servers import missing

MODES = ("plain", "exact", "approx")


def measure_workload(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Send each request of the workload to all three modes, one after another."""
    drawn = draw(args.warm + args.requests, k=args.k, corpus=args.corpus, seed=1)
    settings = EngineSettings(model=model, num_threads=1, capacity_tokens=args.capacity_tokens)
    index = IndexSettings(capacity_tokens=args.capacity_tokens)
    answers: dict[str, list[Answer]] = {mode: [] for mode in MODES}
    with ExitStack() as stack:
        served = {
            mode: stack.enter_context(
                serve(
                    settings,
                    Settings(index=index, formats=FormatSettings(in_text=mode != "plain")),
                )
            )
            for mode in MODES
        }
        for number, turn in enumerate(drawn):
            for mode in MODES:
                answers[mode].append(served[mode].ask(request_body(turn, mode, args.ratio)))
            print(f"\rworkload {number + 1}/{len(drawn)}", end="", file=sys.stderr)
        chunk_filler = served["approx"].engine.chunk_filler
        assert chunk_filler is not None
        stored = chunk_filler.num_stored
    print(file=sys.stderr)
    measured = {mode: found[args.warm :] for mode, found in answers.items()}
    result = {mode: _summary(found) for mode, found in measured.items()}
    return {
        "requests": args.requests,
        "warm_up": args.warm,
        "documents": args.k,
        "corpus": args.corpus,
        "layers": args.layers,
        "ratio": args.ratio,
        "policy": DEFAULT_POLICY,
        **result,
        "ttft_ratio": _ratios({mode: [each.ttft_s for each in measured[mode]] for mode in MODES}),
        "cpu_ratio": _ratios({mode: [each.cpu_s for each in measured[mode]] for mode in MODES}),
        "same_as_exact": round(
            statistics.fmean(
                approx.text == exact.text
                for approx, exact in zip(measured["approx"], measured["exact"], strict=True)
            ),
            4,
        ),
        "chunks_stored": stored,
        "warm_up_tokens": [each.sources for each in answers["approx"][: args.warm]],
    }


def _ratios(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return medians of the per-request ratios between modes."""
    return {
        f"{slow}/{fast}": round(
            statistics.median(a / b for a, b in zip(times[slow], times[fast], strict=True)), 2
        )
        for slow, fast in (("plain", "exact"), ("plain", "approx"), ("exact", "approx"))
    }


def _summary(answers: Sequence[Answer]) -> dict[str, Any]:
    times = sorted(answer.ttft_s * 1000 for answer in answers)
    tokens = {name: sum(answer.sources[name] for answer in answers) for name in SOURCES}
    total = sum(tokens.values())
    return {
        "prompt_tokens": total,
        "tokens": tokens,
        "computed_tokens": tokens["computed"] + tokens["recomputed"],
        "share": {name: round(count / total, 4) for name, count in tokens.items()},
        "ttft_ms": {
            "mean": round(statistics.fmean(times), 1),
            "median": round(statistics.median(times), 1),
            "p95": round(times[int(0.95 * (len(times) - 1))], 1),
        },
        "cpu_ms": round(1000 * statistics.median(answer.cpu_s for answer in answers), 1),
    }


def measure_itl(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Stream a response alone and beside the prefill of another request, alternating."""
    drawn = draw(args.repeats, k=args.k, corpus=args.corpus, seed=2)
    settings = EngineSettings(model=model, num_threads=1, capacity_tokens=args.capacity_tokens)
    gaps: dict[str, list[float]] = {"alone": [], "exact": [], "approx": []}
    with serve(settings) as served:
        for turn in drawn:
            rotated = turn._replace(documents=turn.documents[1:] + turn.documents[:1])
            served.ask(request_body(rotated, "approx", args.ratio))
        for turn in drawn:
            for mode in gaps:
                served.engine.reset_prefix_cache().result(60)
                gaps[mode] += _gaps_beside(served, turn, mode, args)
    return {
        "repeats": args.repeats,
        "step_tokens": settings.max_step_tokens,
        **{
            mode: {
                "median_ms": round(statistics.median(found), 1),
                "p95_ms": round(sorted(found)[int(0.95 * (len(found) - 1))], 1),
                "max_ms": round(max(found), 1),
            }
            for mode, found in gaps.items()
        },
    }


def _gaps_beside(
    served: Served, turn: WorkloadTurn, mode: str, args: argparse.Namespace
) -> list[float]:
    """Return inter-token times (ms) of a response streamed while another request is prefilled."""
    answers: list[Answer] = []
    body = {
        "messages": [{"role": "user", "content": "Tell me a long story."}],
        "max_tokens": args.itl_tokens,
        "ignore_eos": True,
    }
    thread = threading.Thread(target=lambda: answers.append(served.ask(body)))
    thread.start()
    if mode != "alone":
        time.sleep(0.1)
        prompt = {**request_body(turn, mode, args.ratio), "max_tokens": 1}
        with httpx.Client(timeout=600) as client:
            served._replace(client=client).ask(prompt)
    thread.join()
    return [1000 * gap for gap in answers[0].gaps_s]


def show(result: Mapping[str, Any]) -> None:
    if work := result.get("workload"):
        print(f"\n{work['requests']} requests, {work['documents']} documents each")
        for mode in MODES:
            shares = (f"{name} {share:6.1%}" for name, share in work[mode]["share"].items())
            ttft, cpu = work[mode]["ttft_ms"]["median"], work[mode]["cpu_ms"]
            times = f"median TTFT {ttft:.0f} ms, CPU {cpu:.0f} ms"
            print(f"  {mode:7} {times} ", "  ".join(shares))
        print(f"  medians of ratios: TTFT {work['ttft_ratio']}, CPU {work['cpu_ratio']}")
        print(f"  same answers as exact {work['same_as_exact']:.0%}")
    if tasks := result.get("tasks"):
        print("\naccuracy by task: exact, and recompute ratios of 0, 10 and 15 %")
        for task, scores in tasks["accuracy"].items():
            print(f"  {task:10}", "  ".join(f"{value:.3f}" for value in scores.values()))
        print(f"  same answer as exact: {tasks['same_as_exact']}")
    if itl := result.get("itl"):
        print("\ninter-token latency of a running response")
        for mode in ("alone", "exact", "approx"):
            print(f"  {mode:7} {itl[mode]}")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--engine", choices=["embedded", "vllm", "sglang", "simulated"], default="embedded"
    )
    parser.add_argument(
        "--parts", default="tasks,workload,itl", help="parts to run, comma-separated"
    )
    parser.add_argument("--requests", type=int, default=48, help="measured requests per mode")
    parser.add_argument("--warm", type=int, default=12, help="unmeasured requests before them")
    parser.add_argument("--corpus", type=int, default=48, help="documents in the corpus")
    parser.add_argument("--k", type=int, default=8, help="documents per request")
    parser.add_argument("--layers", type=int, default=16, help="layers of the random model")
    parser.add_argument("--ratio", type=float, default=0.15, help="recompute ratio")
    parser.add_argument("--prompts", type=int, default=40, help="prompts per task")
    parser.add_argument("--repeats", type=int, default=3, help="responses measured for ITL")
    parser.add_argument("--itl-tokens", type=int, default=150, help="tokens of each such response")
    parser.add_argument("--capacity-tokens", type=int, default=32_768, help="prefix cache size")
    real = parser.add_argument_group("retrieval workload")
    real.add_argument("--data", type=Path, help="its folder")
    real.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    real.add_argument("--hot", type=int, help="only requests with one of so many hot documents")
    real.add_argument("--disjoint", action="store_true", help="no two requests share a document")
    real.add_argument("--texts", choices=["padded", "extracts"], default="padded")
    real.add_argument("--retriever", help="default: native if present, else dense")
    real.add_argument("--at-once", type=int, default=10, help="requests sent concurrently")
    real.add_argument("--model", choices=["tiny", "wide", "deep"], default="deep")
    real.add_argument("--fill", choices=["faster", "always"], default="faster")
    real.add_argument("--one-by-one", action="store_true", help="an engine at a time")
    real.add_argument("--keep", type=Path, metavar="FILE", help="write the figures so far into it")
    args = parser.parse_args()
    if args.engine == "simulated":
        report(simulate_arms(args), args, show_modes)
        return
    if args.data or args.engine != "embedded":
        exit_on_sigterm()
        if reason := missing(args.engine):
            parser.error(reason)
        report(measure_engine(args), args, show_modes)
        return
    begin = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        random_model, task_model = Path(folder, "random"), Path(folder, "tasks")
        build_model(random_model, layers=args.layers)
        build_task_model(task_model)
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "tasks": lambda: measure_tasks(task_model, args),
            "workload": lambda: measure_workload(random_model, args),
            "itl": lambda: measure_itl(random_model, args),
        }
        result: dict[str, Any] = {name: parts[name]() for name in args.parts.split(",")}
    result["cpu_s"] = round(time.process_time() - begin)
    report(result, args, show)


def show_modes(result: Mapping[str, Any]) -> None:
    arms = result["computed_tokens"]
    by_arm = {
        name: row for name, row in result.items() if isinstance(row, dict) and set(row) == set(arms)
    }
    by_arm.pop("arms", None)
    columns = {arm: {name: row[arm] for name, row in by_arm.items()} for arm in arms}
    show_columns(columns, result["workload"])


if __name__ == "__main__":
    main()
