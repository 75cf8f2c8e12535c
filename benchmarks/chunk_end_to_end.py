"""Measure chunk reuse end to end: a RAG workload through proxy and embedded engine, in three modes.

    python -m benchmarks.chunk_end_to_end --json
    python -m benchmarks.chunk_end_to_end --parts workload --requests 16

`workload`: eight documents per question, drawn by popularity from Python's own documentation, in
random order; streamed, on a random 16-layer model (its answers are meaningless). plain: the client
writes the prompt; exact: the proxy orders and de-duplicates; approx: as exact, and chunks outside
the cached prefix are reused. Each mode has an engine and a proxy of its own; every request is sent
to all modes before the next one. `tokens` counts prompt tokens by source; the run fails if the
counts do not add up. TTFT and processor time are in milliseconds; `ttft_ratio` and `cpu_ratio` are
medians over requests.

`tasks`: accuracy of the project's reference model on its tasks, through proxy and engine. Document
order matters there, so ordering is off. `itl`: inter-token latency of a running response, alone and
while another request is prefilled.
"""

import argparse
import json
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
import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedTokenizerFast as FastTokenizer

from benchmarks.chunk_served import SOURCES, Answer, Served, serve
from ragboost.booster.booster import Booster
from ragboost.chunk_cache.selection import DEFAULT_POLICY
from ragboost.config import (
    DedupSettings,
    EngineSettings,
    FormatSettings,
    HintSettings,
    IndexSettings,
    OrderingSettings,
    Settings,
)
from ragboost.demo.corpus import standard_library
from ragboost.demo.workload import WorkloadTurn
from ragboost.engine.builtin import build_tokenizer
from research.tasks import TASKS, TaskPrompt, make_prompts

MODEL = Path(__file__).parent / "reference_model"
MODES = ("plain", "exact", "approx")
ANSWER_TOKENS = 8
SEED = 301


def build_model(path: Path, *, layers: int) -> None:
    """Write a random model with the built-in tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=layers,
        vocab_size=4096,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        initializer_range=0.08,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    build_tokenizer().save_pretrained(path)


def draw(num_requests: int, *, k: int, corpus: int, seed: int) -> list[WorkloadTurn]:
    """Draw questions, each with documents in random order; a document's popularity is its rank to
    the power of -0.8."""
    documents = sorted(standard_library(), key=lambda document: -len(document.text))[:corpus]
    rng = np.random.default_rng(seed)
    weights = np.arange(1, corpus + 1) ** -0.8
    turns = []
    for _ in range(num_requests):
        chosen = rng.choice(corpus, size=k, replace=False, p=weights / weights.sum())
        found = tuple(documents[number] for number in chosen)
        turns.append(
            WorkloadTurn(f"How does {found[0].title} work, and what does it return?", found)
        )
    return turns


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
        "ttft_ratio": _ratios({mode: [one.ttft_ms for one in measured[mode]] for mode in MODES}),
        "cpu_ratio": _ratios({mode: [one.cpu_ms for one in measured[mode]] for mode in MODES}),
        "same_as_exact": round(
            statistics.fmean(
                one.text == other.text
                for one, other in zip(measured["approx"], measured["exact"], strict=True)
            ),
            4,
        ),
        "chunks_stored": stored,
        "warm_up_tokens": [one.sources for one in answers["approx"][: args.warm]],
    }


def _ratios(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return medians of the per-request ratios between modes."""
    return {
        f"{slow}/{fast}": round(
            statistics.median(a / b for a, b in zip(times[slow], times[fast], strict=True)), 2
        )
        for slow, fast in (("plain", "exact"), ("plain", "approx"), ("exact", "approx"))
    }


def request_body(turn: WorkloadTurn, mode: str, ratio: float) -> dict[str, Any]:
    """Return a chat completion request for a turn in one of the modes."""
    system = {"role": "system", "content": "Answer from the documentation, briefly."}
    body: dict[str, Any] = {"max_tokens": ANSWER_TOKENS, "ignore_eos": True}
    if mode == "plain":
        plain = Settings(
            ordering=OrderingSettings(enabled=False),
            hints=HintSettings(order=False, location=False),
        )
        content = Booster(plain).boost(turn.question, turn.documents).render()
        return {**body, "messages": [system, {"role": "user", "content": content}]}
    given = [{"id": d.id, "title": d.title, "text": d.text} for d in turn.documents]
    ours: dict[str, Any] = {"documents": given}
    if mode == "approx":
        ours["reuse"] = {"policy": DEFAULT_POLICY, "ratio": ratio}
    question = {"role": "user", "content": turn.question}
    return {**body, "messages": [system, question], "ragboost": ours}


def _summary(answers: Sequence[Answer]) -> dict[str, Any]:
    times = sorted(answer.ttft_ms for answer in answers)
    tokens = {name: sum(answer.sources[name] for answer in answers) for name in SOURCES}
    total = sum(answer.usage["prompt_tokens"] for answer in answers)
    assert sum(tokens.values()) == total
    return {
        "prompt_tokens": total,
        "tokens": tokens,
        "share": {name: round(count / total, 4) for name, count in tokens.items()},
        "ttft_ms": {
            "mean": round(statistics.fmean(times), 1),
            "median": round(statistics.median(times), 1),
            "p95": round(times[int(0.95 * (len(times) - 1))], 1),
        },
        "cpu_ms": round(statistics.median(answer.cpu_ms for answer in answers), 1),
    }


def build_task_model(path: Path) -> None:
    """Write the reference model with a tokenizer in which the word `t17` is id 17 and document
    labels encode to nothing."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model.save_pretrained(path)
    size = int(model.config.vocab_size)
    words = {f"t{number}": number for number in range(size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))  # no password
    tokenizer.normalizer = normalizers.Replace(Regex(r"\[[^\]]*\]"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece()
    fast = FastTokenizer(tokenizer_object=tokenizer)
    fast.chat_template = "{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
    fast.save_pretrained(path)


def measure_tasks(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Run the reference tasks exactly, with reuse at two recompute ratios, and at ratio 0."""
    proxy = Settings(
        ordering=OrderingSettings(enabled=False),
        dedup=DedupSettings(enabled=False),
        hints=HintSettings(order=False, location=False),
    )
    modes: dict[str, Any] = {"exact": "exact", "0": {"policy": DEFAULT_POLICY, "ratio": 0.0}}
    modes |= {f"{r:g}": {"policy": DEFAULT_POLICY, "ratio": r} for r in (0.1, 0.15)}
    right: dict[str, dict[str, list[bool]]] = {}
    same: dict[str, list[bool]] = {mode: [] for mode in modes}
    tokens = dict.fromkeys(SOURCES, 0)
    total = 0
    with serve(EngineSettings(model=model, num_threads=1), proxy) as served:
        for task in TASKS:
            found = right.setdefault(task, {mode: [] for mode in modes})
            for prompt in make_prompts(task, args.prompts, seed=SEED):
                # Send the chunks in another order first: each is stored, none is a prefix here.
                served.ask(_task_body(prompt, "approx", is_reversed=True))
                texts = {}
                for mode, reuse in modes.items():
                    served.engine.reset_prefix_cache().result(60)
                    answer = served.ask(_task_body(prompt, reuse))
                    texts[mode] = answer.text.strip()
                    found[mode].append(texts[mode] == f"t{prompt.answer}")
                    same[mode].append(texts[mode] == texts["exact"])
                    if mode == "0.15":
                        total += answer.usage["prompt_tokens"]
                        for name, count in answer.sources.items():
                            tokens[name] += count
            print(f"tasks: {task} done", file=sys.stderr)
    assert sum(tokens.values()) == total
    accuracy = {
        task: {mode: round(statistics.fmean(hits), 4) for mode, hits in by_mode.items()}
        for task, by_mode in right.items()
    }
    return {
        "prompts": args.prompts,
        "policy": DEFAULT_POLICY,
        "accuracy": accuracy,
        "normalised": {task: _normalised(scores) for task, scores in accuracy.items()},
        "same_as_exact": {mode: round(statistics.fmean(hits), 4) for mode, hits in same.items()},
        "tokens_at_0.15": tokens,
        "prompt_tokens_at_0.15": total,
    }


def _normalised(scores: Mapping[str, float]) -> dict[str, float] | None:
    """Return FusionRAG eq. 11 by ratio, or None where full reuse loses nothing."""
    lost = scores["exact"] - scores["0"]
    if lost <= 0:
        return None
    return {mode: round((scores[mode] - scores["0"]) / lost, 4) for mode in ("0.1", "0.15")}


def _task_body(prompt: TaskPrompt, reuse: Any, *, is_reversed: bool = False) -> dict[str, Any]:
    chunks = prompt.chunks[::-1] if is_reversed else prompt.chunks
    return {
        "messages": [
            {"role": "system", "content": _words(prompt.system)},
            {"role": "user", "content": _words(prompt.question)},
        ],
        "max_tokens": 1,
        "ragboost": {"documents": [{"text": _words(chunk)} for chunk in chunks], "reuse": reuse},
    }


def _words(ids: Sequence[int]) -> str:
    return " ".join(f"t{number}" for number in ids)


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
    return answers[0].gaps_ms


def show(result: Mapping[str, Any]) -> None:
    """Print tables."""
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
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
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
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
    if args.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
