"""Measure the accuracy of dependency attention on questions over relation paths.

    python -m benchmarks.graph.quality --json
    python -m benchmarks.graph.quality --only dependency/depth --cases 20

Variants: ordinary attention over flattened paths (`self_attention`); dependency attention with the
untuned and the fine-tuned model, with positions by depth and in pre-order; reuse of subgraphs
computed at other positions by earlier prompts, with and without re-encoded keys; selective
recompute on the untuned model; and flattened paths where only subgraphs are independent of each
other (`subgraphs`). The models come from `scripts/train_graph_model.py`, which trains them on these
tasks alone. Printed is the accuracy by task.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.command import make_parser, report
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.selection import DEFAULT_POLICY
from ragboost.graph.depcache import DepCache, DepKV
from ragboost.graph.layout import DepPrompt, Positions
from research.graph_tasks import (
    SYSTEM,
    TASKS,
    GraphCase,
    GraphQuestion,
    draw_cases,
)
from research.repair import repair

MODELS = Path(__file__).parents[1] / "models" / "graph"
POSITIONS: tuple[Positions, ...] = ("depth", "preorder")
Answer = Callable[[GraphCase, GraphQuestion], int]


def load(path: Path) -> ModelAdapter:
    model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True, dtype=torch.float32)
    return ModelAdapter(model)


def written_out(adapter: ModelAdapter) -> Answer:
    depcache = DepCache(adapter, capacity_tokens=0)
    return lambda case, question: int(depcache.compute_depkv(case.text(question)).logits.argmax())


def tree(
    adapter: ModelAdapter, positions: Positions, *, ratio: float = 0.0, policy: str = DEFAULT_POLICY
) -> Answer:
    depcache = DepCache(adapter, capacity_tokens=0, positions=positions)
    return lambda case, question: _answer(
        adapter, depcache.compute_depkv(case.tree(question)), ratio=ratio, policy=policy
    )


def subgraphs(adapter: ModelAdapter, *, ratio: float, policy: str) -> Answer:
    """Answer with each root's paths flattened and computed independently of other roots."""
    depcache = DepCache(adapter, capacity_tokens=0, positions="preorder")
    return lambda case, question: _answer(
        adapter, depcache.compute_depkv(case.subgraphs(question)), ratio=ratio, policy=policy
    )


def _answer(adapter: ModelAdapter, kv: DepKV, *, ratio: float, policy: str) -> int:
    logits = repair(adapter, kv, ratio=ratio, policy=policy) if ratio else kv.logits
    return int(logits.argmax())


def reused(
    adapter: ModelAdapter, positions: Positions, others: list[GraphCase], *, reencode: bool
) -> Answer:
    """Answer with subgraphs that were computed after those of another case, in reverse order."""

    def answer(case: GraphCase, question: GraphQuestion) -> int:
        depcache = DepCache(adapter, positions=positions, reencode=reencode)
        other = others[(hash(case.paths) + 1) % len(others)]
        before = DepPrompt.of(SYSTEM, (*other.paths[:12], *reversed(case.paths)), question.tokens)
        depcache.compute_depkv(before)
        found = depcache.compute_depkv(case.tree(question))
        if found.num_reused != found.layout.task:
            raise AssertionError("the subgraphs were not all stored")
        return int(found.logits.argmax())

    return answer


def accuracy(answer: Answer, cases: list[GraphCase]) -> dict[str, float]:
    right = dict.fromkeys(TASKS, 0)
    for case in cases:
        for question in case.questions:
            right[question.task] += answer(case, question) == question.answer
    scores = {task: round(count / len(cases), 3) for task, count in right.items()}
    return {**scores, "mean": round(sum(right.values()) / len(cases) / len(TASKS), 3)}


def variants(args: argparse.Namespace, cases: list[GraphCase]) -> dict[str, Answer]:
    base = load(args.models / "base")
    found = {"self_attention": written_out(base)}
    for ratio in (0.0, *args.ratios):
        name = f"subgraphs/untuned/recompute_{ratio:g}"
        found[name] = subgraphs(base, ratio=ratio, policy=args.policy)
    for positions in POSITIONS:
        tuned = load(args.models / positions)
        name = f"dependency/{positions}"
        found[f"{name}/untuned"] = tree(base, positions)
        found[f"{name}/tuned"] = tree(tuned, positions)
        for reencode in (True, False):
            kind = "reused" if reencode else "reused_not_reencoded"
            found[f"{name}/tuned/{kind}"] = reused(tuned, positions, cases, reencode=reencode)
        for ratio in args.ratios:
            found[f"{name}/untuned/recompute_{ratio:g}"] = tree(
                base, positions, ratio=ratio, policy=args.policy
            )
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--models", type=Path, default=MODELS, help="folder of the reference models"
    )
    parser.add_argument(
        "--cases", type=int, default=100, help="graphs, each with a question per task"
    )
    parser.add_argument("--ratios", default="0.15,0.3,0.5,1", help="recompute ratios")
    parser.add_argument("--only", default="", help="prefix of the variants to run")
    parser.add_argument("--policy", default=DEFAULT_POLICY, help="selection policy")
    parser.add_argument("--seed", type=int, default=20_000)
    args = parser.parse_args()
    args.ratios = [float(ratio) for ratio in args.ratios.split(",")]
    cases = draw_cases(args.cases, seed=args.seed)
    chosen = {name: v for name, v in variants(args, cases).items() if name.startswith(args.only)}
    scores = {name: accuracy(answer, cases) for name, answer in chosen.items()}
    report({"accuracy": scores, "cases": args.cases, "policy": args.policy}, args, show)


def show(result: dict[str, Any]) -> None:
    for name, score in result["accuracy"].items():
        print(f"{name:48}", "  ".join(f"{task} {value:.2f}" for task, value in score.items()))


if __name__ == "__main__":
    main()
