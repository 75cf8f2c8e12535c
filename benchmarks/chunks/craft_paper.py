"""Measure the figures of Cache-Craft that `craft_quality` leaves out, on the reference model.

    python -m benchmarks.chunks.craft_paper --parts quality,position,ablation,size --json
    python -m benchmarks.chunks.craft_paper --parts trace --data PATH --json

`quality` (Fig. 20, 21): accuracy with the versions that served requests leave behind, at most N x M
of them, beside Prefix-Cache, Set-Cache, Prefill-H2O and a random choice. `position` (Table 3): with
and without keys rotated to their new positions, with and without recompute. `ablation` (Fig. 26):
without overlap, and by alpha. `size` (Fig. 27): by number and length of the documents. `trace`
(Fig. 22, 24, 25): tokens computed for the requests of a retrieval workload, one after another, with
a prefix cache alone and with Cache-Craft; each document of it stands for one of the model's.

`score` is the mean accuracy of the tasks that need other documents; `work` the share of the tokens
that is computed; `fixed` the share of reused tokens that is recomputed.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.chunks.articles import Articles
from benchmarks.chunks.craft_quality import (
    Outcome,
    alpha_for,
    answer,
    baseline,
    earlier_requests,
    warm_up,
    warmed,
)
from benchmarks.chunks.reference import MODEL, SPLITS, load_reuse
from benchmarks.command import make_parser, report
from benchmarks.datasets.retrieval import load_data
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval.cases import Case
from ragboost.chunk_cache.eval.metrics import estimate
from ragboost.chunk_cache.model.attention.backend import AttentionInputs, exact_mask
from ragboost.chunk_cache.model.attention.dense import attention_weights
from ragboost.chunk_cache.model.pace import Steps
from ragboost.chunk_cache.selection import make_policy
from ragboost.chunk_cache.selection.policy import SelectionPolicy
from ragboost.chunk_cache.selection.view import SelectionView
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.influence import chunk_name
from ragboost.simulate import SimulatedCache
from research.craft.reuse import CraftReuse, PlannedTokens
from research.craft.variants import Variants
from research.tasks import SYSTEM, make_prompts

Rows = dict[str, list[tuple[str, Outcome]]]
"""By method, the task and the outcome of each case."""

PAPER: dict[str, Any] = {}
BEST: dict[str, Any] = {"cautious": True, "order": "change"}
FORMS = {"paper": PAPER, "literal CCI": {"literal": True}, "cautious change": BEST}
TARGETS = (0.2, 0.3)
SHAPES = ((4, 12), (6, 12), (8, 12), (10, 12), (8, 8), (8, 16), (8, 24))
"""Documents and tokens of each, in `size`; the model is trained on up to 8 and 12."""


class HeavyHitters(SelectionPolicy):
    """Recompute the tokens that received most attention when their chunk was computed (H2O)."""

    def __init__(self, received: torch.Tensor) -> None:
        self._received = received  # (tokens,) of the prompt

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        yield from ()
        return self._received[view.candidates]


class WithoutOverlap(CraftReuse):
    """Cache-Craft without beta: every context is as foreign as any other."""

    def _choose(self, name: str, prefix: Sequence[str]) -> Any:
        return super()._choose(name, ["another chunk"] if prefix else [])


def received_attention(
    reuse: ChunkReuse, articles: Articles, *, seed: int
) -> dict[tuple[int, ...], torch.Tensor]:
    """Return the attention that each token of a chunk received in the last earlier request with
    it, averaged over heads and summed over layers, by chunk."""
    found: dict[tuple[int, ...], torch.Tensor] = {}
    system, question = articles.cases[0].system, articles.cases[0].question
    for chunks in earlier_requests(articles, seed=seed):
        total = torch.zeros(len(system) + sum(map(len, chunks)) + len(question))

        def observe(_layer: int, inputs: AttentionInputs, total: torch.Tensor = total) -> None:
            mask = exact_mask(inputs.positions, inputs.num_keys, window=None, visible=None)
            weights = attention_weights(inputs, inputs.query, inputs.key, mask)
            total += weights[0].mean(0).sum(0)

        nothing: list[ChunkKV | None] = [None] * len(chunks)
        reuse.prefill(system, chunks, question, stored=nothing, observe=observe)
        start = len(system)
        for chunk in chunks:
            found[chunk] = total[start : start + len(chunk)]
            start += len(chunk)
    return found


def chain_of(variants: Variants, names: Sequence[str], *, in_order: bool) -> tuple[str, ...]:
    """Return the longest beginning of an earlier request whose chunks are all in this one:
    at the same places (prefix cache), or anywhere (Set-Cache)."""
    best: tuple[str, ...] = ()
    for name in names:
        for variant in variants.of(name):
            chain = (*variant.influence.context, name)
            fits = chain == tuple(names[: len(chain)]) if in_order else {*chain} <= {*names}
            if fits and len(chain) > len(best):
                best = chain
    return best


def stored_of(craft: CraftReuse, case: Case, *, in_order: bool) -> list[ChunkKV | None]:
    """Return the KV of the chunks that a prefix cache or Set-Cache would reuse."""
    names = [chunk_name(chunk) for chunk in case.chunks]
    chain = chain_of(craft.variants, names, in_order=in_order)
    found: dict[str, ChunkKV | None] = {}
    for number, name in enumerate(chain):
        for variant in craft.variants.of(name):
            if variant.influence.context == chain[:number]:
                found[name] = craft.reuse.store.get(variant.key)
    return [found.get(name) for name in names]


def prefill(
    craft: CraftReuse,
    case: Case,
    stored: Sequence[ChunkKV | None],
    *,
    policy: SelectionPolicy,
    ratio: float = 0.0,
) -> Outcome:
    """Answer a case from this KV."""
    done = craft.reuse.prefill(
        case.system, case.chunks, case.question, policy=policy, ratio=ratio, stored=stored
    )
    rows = done.counts.recomputed + done.counts.computed
    right = float(int(done.logits.argmax()) == case.answer)
    reused = sum(len(kv.tokens) for kv in stored if kv is not None)
    fixed = done.counts.recomputed / reused if reused else 0.0
    return Outcome(right, fixed, rows / done.num_tokens, stopped=False)


def served(
    model: Path, articles: Articles, options: dict[str, Any], *, seed: int, target: float
) -> CraftReuse:
    """Return Cache-Craft after the earlier requests, served at its own alpha with N x M versions:
    only chunks that were computed whole left one."""
    alpha = 1.0
    for _ in range(2):  # alpha decides which versions there are, and they decide alpha
        craft = CraftReuse(load_reuse(model), alpha=alpha, early_stop=False, **options)
        warm_up(craft, articles, seed=seed)
        alpha = craft.alpha = alpha_for(craft, articles.cases, ratio=target)
    return craft


def quality(model: Path, seed: int, asked: int) -> Rows:
    """Fig. 20 and 21."""
    rows: Rows = {}
    reuse, variants, articles = warmed(model, seed=seed, asked=asked)
    whole = CraftReuse(reuse, variants=variants, alpha=0.0, early_stop=False)
    received = received_attention(load_reuse(model), articles, seed=seed)

    def note(method: str, case: Case, outcome: Outcome) -> None:
        rows.setdefault(method, []).append((case.task, outcome))

    for case in articles.cases:
        note("full", case, baseline(whole, case, policy=make_policy("full"), ratio=1.0))
        for name, in_order in (("prefix cache", True), ("set cache", False)):
            kept = stored_of(whole, case, in_order=in_order)
            note(name, case, prefill(whole, case, kept, policy=make_policy("reuse")))
    for name, options in FORMS.items():
        for target in TARGETS:
            craft = served(model, articles, options, seed=seed, target=target)
            for case in articles.cases:
                note(f"{name}, {target:.0%}", case, answer(craft, case))
            if options is not BEST:
                continue
            craft.alpha = 0.0
            for number, case in enumerate(articles.cases):
                scores = torch.cat([received.get(c, torch.zeros(len(c))) for c in case.chunks])
                scores = torch.nn.functional.pad(scores, (len(case.system), len(case.question)))
                for other, policy in {
                    "full cache": make_policy("reuse"),
                    "h2o": HeavyHitters(scores),
                    "random": make_policy("random", seed=number),
                    "gradual": make_policy("gradual"),
                }.items():
                    ratio = 0.0 if other == "full cache" else target
                    label = f"{other}, {target:.0%}"
                    note(label, case, baseline(craft, case, policy=policy, ratio=ratio))
        print(f"seed {seed}: {name}", file=sys.stderr)
    return rows


def position(model: Path, seed: int, asked: int) -> Rows:
    """Table 3."""
    rows: Rows = {}
    reuse, variants, articles = warmed(model, seed=seed, asked=asked)
    craft = CraftReuse(reuse, variants=variants, early_stop=False, **BEST)
    alpha_for(craft, articles.cases, ratio=0.3)
    for case in articles.cases:
        plan, turned = craft.plan_with_kv(case.system, case.chunks, case.question)
        stuck = [
            None if kv is None else replace(kv, base=chunk.start)
            for chunk, kv in zip(plan.chunks, turned, strict=True)
        ]
        for place, kept in (("stale positions", stuck), ("positions", turned)):
            for name, policy in {
                "no recompute": make_policy("reuse"),
                "30 % by change": PlannedTokens(plan),
                "30 % by gradual": make_policy("gradual"),
            }.items():
                outcome = prefill(craft, case, kept, policy=policy, ratio=0.3)
                rows.setdefault(f"{place}, {name}", []).append((case.task, outcome))
    return rows


def ablation(model: Path, seed: int, asked: int) -> Rows:
    """Fig. 26: the rows without CCI (a random choice) and without focus are `craft_quality`'s."""
    rows: Rows = {}
    reuse, variants, articles = warmed(model, seed=seed, asked=asked)
    for name, options in FORMS.items():
        kinds: dict[str, Callable[..., CraftReuse]] = {"": CraftReuse}
        kinds["without overlap, "] = WithoutOverlap
        for kind, make in kinds.items():
            for alpha in (0.5, 1.0, 2.0, 3.0, 8.0):
                craft = make(reuse, variants=variants, alpha=alpha, early_stop=False, **options)
                rows[f"{name}, {kind}alpha {alpha:g}"] = [
                    (case.task, answer(craft, case)) for case in articles.cases
                ]
        print(f"seed {seed}: {name}", file=sys.stderr)
    return rows


def size(model: Path, seed: int, asked: int) -> Rows:
    """Fig. 27."""
    rows: Rows = {}
    for documents, length in SHAPES:
        reuse, variants, articles = warmed(
            model, seed=seed, asked=asked, documents=documents, length=length
        )
        craft = CraftReuse(reuse, variants=variants, early_stop=False, **BEST)
        alpha_for(craft, articles.cases, ratio=0.3)
        for case in articles.cases:
            for name, outcome in {
                "full": baseline(craft, case, policy=make_policy("full"), ratio=1.0),
                "full cache": baseline(craft, case, policy=make_policy("reuse"), ratio=0.0),
                "cautious change, 30%": answer(craft, case),
                "gradual, 30%": baseline(craft, case, policy=make_policy("gradual"), ratio=0.3),
            }.items():
                row = rows.setdefault(f"{documents} x {length}, {name}", [])
                row.append((case.task, outcome))
        print(f"seed {seed}: {documents} documents of {length}", file=sys.stderr)
    return rows


PARTS: dict[str, Callable[[Path, int, int], Rows]] = {
    "quality": quality,
    "position": position,
    "ablation": ablation,
    "size": size,
}


def summary(runs: Sequence[Rows]) -> dict[str, dict[str, float]]:
    """Return means over seeds by method; `error` is the standard error of `score` between them."""
    found = {}
    for method in runs[0]:
        scores = []
        for run in runs:
            by_task: dict[str, list[float]] = {}
            for task, outcome in run[method]:
                by_task.setdefault(task, []).append(outcome.score)
            scores.append(
                float(
                    np.mean([np.mean(found) for task, found in by_task.items() if task != "local"])
                )
            )
        outcomes = [outcome for run in runs for _, outcome in run[method]]
        found[method] = {
            "score": round(float(np.mean(scores)), 3),
            "error": round(estimate(scores).error, 3) if len(scores) > 1 else 0.0,
            "fixed": round(float(np.mean([outcome.ratio for outcome in outcomes])), 3),
            "work": round(float(np.mean([outcome.work for outcome in outcomes])), 3),
        }
    return found


def trace(model: Path, data: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Fig. 22, 24 and 25: count the tokens that a trace computes."""
    workload = load_data(data, retriever=args.retriever, k=args.k)
    contexts = workload.contexts[: args.requests]
    numbers = {name: i for i, name in enumerate(dict.fromkeys(d for c in contexts for d in c))}
    prompts = make_prompts("local", len(numbers) // 8 + 1, seed=0)
    documents = [chunk for prompt in prompts for chunk in prompt.chunks]
    requests = [[documents[numbers[name]] for name in context] for context in contexts]
    question = prompts[0].question
    tokens = dict.fromkeys(documents, len(documents[0]))
    prefix = SimulatedCache(tokens)
    total = sum(
        len(SYSTEM) + len(question) + len(chunks) * len(documents[0]) for chunks in requests
    )
    cached = sum(prefix.request(chunks).cached_tokens for chunks in requests)
    alone = total - cached - len(SYSTEM) * (len(requests) - 1)
    found: dict[str, Any] = {
        "workload": workload.name,
        "requests": len(requests),
        "documents": len(numbers),
        "k": args.k,
        "prefix_cache_computes": round(alone / total, 3),
    }
    for name in ("paper", "cautious change"):
        for alpha in args.alphas:
            craft = CraftReuse(load_reuse(model), alpha=alpha, early_stop=False, **FORMS[name])
            found[f"{name}, alpha {alpha:g}"] = _replay(craft, requests, question, alone)
            print(f"trace: {name} at {alpha}", file=sys.stderr)
    return found


def _replay(
    craft: CraftReuse,
    requests: Sequence[Sequence[tuple[int, ...]]],
    question: Sequence[int],
    alone: int,
) -> dict[str, Any]:
    hits: Counter[int] = Counter()
    computed = fixed = reused = 0
    for chunks in requests:
        plan = craft.prefill(SYSTEM, chunks, question).plan
        computed += plan.num_computed + plan.num_recomputed
        fixed += plan.num_recomputed
        reused += sum(chunk.num_tokens for chunk in plan.hits)
        hits[len(plan.hits)] += 1
    craft.variants.check_integrity()
    names = {chunk_name(chunk) for chunks in requests for chunk in chunks}
    versions = Counter(len(craft.variants.of(name)) for name in names)
    return {
        "fewer_tokens_than_prefix_cache": round(1 - (computed + len(SYSTEM)) / alone, 3),
        "fixed": round(fixed / reused, 3),
        "requests_by_hits": dict(sorted(hits.items())),
        "chunks_by_versions": {count: versions[count] for count in sorted(versions) if count},
        "stored_versions": len(craft.variants),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    parser.add_argument("--model", type=Path, default=MODEL, help="reference model")
    parser.add_argument("--split", choices=SPLITS, default="test", help="prompts to evaluate on")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the split to use")
    parser.add_argument(
        "--articles", type=int, default=40, help="articles with questions, per seed"
    )
    parser.add_argument("--data", type=Path, help="folder of a retrieval workload, for trace")
    parser.add_argument("--retriever", default="dense", help="its list")
    parser.add_argument("--requests", type=int, default=600, help="requests of it")
    parser.add_argument("--k", type=int, default=5, help="documents per request of it")
    parser.add_argument(
        "--alphas", type=float, nargs="+", default=[0.25, 0.5, 1.0], help="for trace"
    )
    args = parser.parse_args()
    names = args.parts.split(",")
    if "trace" in names and args.data is None:
        parser.error("trace needs --data")
    result: dict[str, Any] = {"articles": args.articles, "seeds": args.seeds}
    for name in names:
        if name == "trace":
            result[name] = trace(args.model, args.data, args)
            continue
        seeds = SPLITS[args.split][: args.seeds]
        result[name] = summary([PARTS[name](args.model, seed, args.articles) for seed in seeds])
    report(result, args, show)


def show(result: dict[str, Any]) -> None:
    for name in result.keys() & {*PARTS, "trace"}:
        print(f"\n{name}")
        for method, cell in result[name].items():
            print(f"  {method:40} {cell}")


if __name__ == "__main__":
    main()
