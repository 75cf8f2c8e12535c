"""Measure answer quality of Cache-Craft: reuse of chunk versions stored by earlier requests.

    python -m benchmarks.chunk_quality --craft --json

The earlier requests retrieve some of an article's documents in random order, mixed with documents
of other articles; then the article's questions are asked. Alpha (eq. 12) is set per form so that
plans recompute on average 20 or 30 % of the tokens of reused chunks. `stopped` is the share of
prompts that stopped recomputing early because the focused chunks were determined; `work` is the
share of token-layers computed. Baselines over the same versions: no recompute, and as many tokens
chosen at random or by `gradual`. `place` is the mean rank (1 to 12) of the token that depends on
another chunk, in each version's recompute order.
"""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from benchmarks.articles import DOCUMENTS, LENGTH, Articles, make_articles
from benchmarks.parts import part
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval.cases import Case
from ragboost.chunk_cache.eval.metrics import estimate
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.selection import make_policy
from ragboost.chunk_cache.selection.policy import SelectionPolicy
from ragboost.chunk_cache.store.influence import Order
from ragboost.chunk_cache.store.tiered import TieredStore
from research.craft.reuse import CraftReuse
from research.craft.variants import Variants
from research.tasks import NUM_VALUES, first_id

TARGETS = (0.2, 0.3)
FORMS: dict[str, dict[str, Any]] = {
    "paper": {},
    "literal": {"literal": True},
    "cautious": {"cautious": True},
    "peak": {"order": "peak"},
    "cautious peak": {"cautious": True, "order": "peak"},
    "change": {"order": "change"},
    "cautious change": {"cautious": True, "order": "change"},
}
WARM_UP, OWN, STRANGERS = 3, 5, 3
"""Earlier requests per article, documents of the article in each, and documents of others."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one prompt with one method."""

    score: float
    ratio: float
    work: float
    stopped: bool


def earlier_requests(articles: Articles, *, seed: int) -> list[list[tuple[int, ...]]]:
    """Return the documents of each earlier request, in its order."""
    rng = np.random.default_rng([seed, 5])
    size, requests = articles.size, []
    for article in range(articles.asked):
        for _ in range(WARM_UP):
            own = rng.choice(size, min(OWN, size), replace=False) + size * article
            others = rng.integers(size * articles.asked, len(articles.documents), STRANGERS)
            mixed = rng.permutation(np.concatenate([own, others]))
            requests.append([articles.documents[number] for number in mixed.tolist()])
    return requests


def warm_up(craft: CraftReuse, articles: Articles, *, seed: int) -> None:
    """Prefill the earlier requests, which store chunk versions."""
    system, question = articles.cases[0].system, articles.cases[0].question
    for chunks in earlier_requests(articles, seed=seed):
        craft.prefill(system, chunks, question)


def alpha_for(craft: CraftReuse, cases: Sequence[Case], *, ratio: float) -> float:
    """Return the alpha whose plans recompute, on average, closest to this share of the tokens of
    reused chunks."""
    low, high = 0.0, 64.0
    for _ in range(14):
        craft.alpha = (low + high) / 2
        plans = [craft.plan(case.system, case.chunks, case.question) for case in cases]
        mean = sum(plan.recompute_ratio for plan in plans) / len(plans)
        low, high = (craft.alpha, high) if mean < ratio else (low, craft.alpha)
    return high


def answer(craft: CraftReuse, case: Case) -> Outcome:
    result = craft.prefill(case.system, case.chunks, case.question, learn=False)
    done, layers = result.prefill, craft.reuse.adapter.num_layers
    rows = done.counts.recomputed + done.counts.computed
    return Outcome(
        score=float(int(done.logits.argmax()) == case.answer),
        ratio=result.plan.recompute_ratio,
        work=(rows - result.num_saved / layers) / done.num_tokens,
        stopped=result.stopped_after is not None,
    )


def baseline(craft: CraftReuse, case: Case, *, policy: SelectionPolicy, ratio: float) -> Outcome:
    """Recompute this share of the same versions' tokens, chosen by another policy."""
    _, stored = craft.plan_with_kv(case.system, case.chunks, case.question)
    done = craft.reuse.prefill(
        case.system, case.chunks, case.question, policy=policy, ratio=ratio, stored=stored
    )
    rows = done.counts.recomputed + done.counts.computed
    right = float(int(done.logits.argmax()) == case.answer)
    return Outcome(right, ratio, rows / done.num_tokens, stopped=False)


def load(model: Path) -> ChunkReuse:
    """Return a model with an empty store."""
    causal_lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return ChunkReuse(ModelAdapter(causal_lm), TieredStore(host_bytes=2 << 30))


def warmed(
    model: Path, *, seed: int, asked: int, documents: int = DOCUMENTS, length: int = LENGTH
) -> tuple[ChunkReuse, Variants, Articles]:
    """Return the chunk versions stored by the earlier requests, and the questions."""
    reuse = load(model)
    articles = make_articles(seed=seed, asked=asked, size=documents, length=length)
    variants = Variants(capacity=100_000)
    # Recompute everything, so that every request stores a version for its context.
    first = CraftReuse(reuse, variants=variants, literal=True, alpha=1e9, order="change")
    warm_up(first, articles, seed=seed)
    print(f"seed {seed}: {len(variants)} versions", file=sys.stderr)
    return reuse, variants, articles


def places(model: Path, *, seed: int, asked: int) -> dict[str, float]:
    """Return the mean rank of dependent tokens by recompute order."""
    reuse, variants, articles = warmed(model, seed=seed, asked=asked)
    dependent = range(first_id("it"), first_id("it") + NUM_VALUES)
    found: dict[str, float] = {}
    for order in get_args(Order):
        craft = CraftReuse(reuse, variants=variants, order=order, early_stop=False)
        ranks: list[int] = []
        for case in articles.cases:
            plan = craft.plan(case.system, case.chunks, case.question)
            for chunk, tokens in zip(plan.chunks, case.chunks, strict=True):
                if chunk.choice is not None and not chunk.is_exact:
                    order_of = chunk.choice.order
                    ranks += [1 + p for p, t in enumerate(order_of) if tokens[t] in dependent]
        found[order] = float(np.mean(ranks))
    return found


def measure_seed(model: Path, *, seed: int, asked: int) -> dict[tuple[str, str], list[Outcome]]:
    """Run every case with every method; results by (task, method)."""
    reuse, variants, articles = warmed(model, seed=seed, asked=asked)
    found: dict[tuple[str, str], list[Outcome]] = {}

    def note(method: str, case: Case, outcome: Outcome) -> None:
        found.setdefault((case.task, method), []).append(outcome)

    for name, options in FORMS.items():
        for target in TARGETS:
            craft = CraftReuse(reuse, variants=variants, early_stop=False, **options)
            alpha = craft.alpha = alpha_for(craft, articles.cases, ratio=target)
            early = CraftReuse(reuse, variants=variants, alpha=alpha, **options)
            for case in articles.cases:
                note(f"{name}, {target:.0%}", case, answer(craft, case))
                note(f"{name}, {target:.0%}, early stop", case, answer(early, case))
            print(f"seed {seed}: {name} at {target}: alpha {alpha:.2f}", file=sys.stderr)
    craft = CraftReuse(reuse, variants=variants, alpha=0.0, early_stop=False)
    for number, case in enumerate(articles.cases):
        note("nothing computed again", case, answer(craft, case))
        note("full", case, baseline(craft, case, policy=make_policy("full"), ratio=1.0))
        others = {"random": make_policy("random", seed=number), "gradual": make_policy("gradual")}
        for name, policy in others.items():
            for target in TARGETS:
                outcome = baseline(craft, case, policy=policy, ratio=target)
                note(f"{name}, {target:.0%}", case, outcome)
    return found


def _rows(model: Path, seed: int, asked: int) -> list[Any]:
    found = measure_seed(model, seed=seed, asked=asked)
    return [[*key, [asdict(outcome) for outcome in outcomes]] for key, outcomes in found.items()]


def _places(model: Path, seed: int, asked: int) -> list[Any]:
    return list(places(model, seed=seed, asked=asked).items())


def run(
    model: Path, *, seeds: Sequence[int], asked: int, parts: Path | None = None
) -> dict[str, Any]:
    """Return means and standard errors over seeds by task and method.

    `parts` is the folder of `parts.part`.
    """
    begin = time.process_time()
    runs, ranks = [], []
    for seed in seeds:
        name = f"places-{seed}-{asked}"
        ranks.append(dict(part(parts, name, partial(_places, model, seed, asked))))
        rows = part(parts, f"craft-{seed}-{asked}", partial(_rows, model, seed, asked))
        runs.append({(task, method): [Outcome(**o) for o in found] for task, method, found in rows})
    result: dict[str, Any] = {}
    for task, method in runs[0]:
        cell: dict[str, float | None] = {}
        for field in ("score", "ratio", "work", "stopped"):
            means = [
                estimate([float(getattr(o, field)) for o in run[task, method]]).mean for run in runs
            ]
            found = estimate(means)
            cell[field] = round(found.mean, 4)
            if field == "score":
                cell["error"] = None if math.isnan(found.error) else round(found.error, 4)
        result.setdefault(task, {})[method] = cell
    return {
        "craft": result,
        "place": {
            order: round(float(np.mean([one[order] for one in ranks])), 2) for order in ranks[0]
        },
        "seeds": list(seeds),
        "articles": asked,
        "cpu_s": round(time.process_time() - begin),
    }


def show(result: dict[str, Any]) -> None:
    """Print a table per task."""
    print("mean rank of dependent tokens:", result["place"])
    for task, by_method in result["craft"].items():
        print(f"\n{task}\n  {'':32} {'score':>6} {'+-':>5} {'ratio':>6} {'work':>5} {'stopped':>7}")
        for method, cell in by_method.items():
            print(
                f"  {method:32} {cell['score']:6.3f} {cell['error'] or 0:5.3f} "
                f"{cell['ratio']:6.3f} {cell['work']:5.3f} {cell['stopped']:7.2f}"
            )
