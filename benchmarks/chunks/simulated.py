"""Count what order, chunk reuse and both compute of a workload, without an engine.

The product's own Booster orders and decides; its context index is the prefix cache, of an engine
that keeps approximate KV out of it. All documents are stored. Does not know texts or time.
"""

import argparse
from collections.abc import Hashable, Sequence
from typing import Any

from benchmarks.datasets.retrieval import load_data
from benchmarks.datasets.workloads import Workload, generate
from ragboost.booster import Booster
from ragboost.config import Settings
from ragboost.types import Document

ARMS = ("plain", "order", "reuse", "both_rent", "both")
QUESTION_TOKENS = 50  # and labels
_CHARACTERS_PER_TOKEN = 4  # of hints
_GENERATED = 5_000


def simulate_arms(args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of each arm, over all requests and over the second half of them.

    Without data the workload is generated, with documents drawn by a Zipf law.
    """
    if args.data is None:
        workload = generate("zipf", _GENERATED, k=args.k)
    else:
        workload = load_data(args.data, retriever=args.retriever or "dense", k=args.k)
    if args.disjoint:
        workload = disjoint_workload(workload)
    arms = {arm: replay(workload, arm, args) for arm in ARMS}
    counts = {
        name: {arm: figures[name] for arm, figures in arms.items()}
        for name in next(iter(arms.values()))
    }
    return {
        "workload": workload.name,
        "requests": len(workload.contexts),
        "cache_tokens": args.capacity_tokens,
        "recompute_ratio": args.ratio,
        **counts,
    }


def disjoint_workload(workload: Workload) -> Workload:
    """Return requests with documents of their own."""
    contexts: list[list[Hashable]] = []
    tokens: dict[Hashable, int] = {}
    for number, context in enumerate(workload.contexts):
        own = {f"{number}-{document}": workload.tokens[document] for document in context}
        contexts.append(list(own))
        tokens.update(own)
    return Workload(f"{workload.name}, disjoint", contexts, tokens)


def replay(workload: Workload, arm: str, args: argparse.Namespace) -> dict[str, float]:
    """Send the requests one after another.

    Without rent-or-buy (`reuse`, `both_rent`) a request leaves no prefix behind, so that every one
    pays the recompute ratio of all its documents.
    """
    settings = Settings.model_validate(
        {
            "index": {"capacity_tokens": args.capacity_tokens},
            "ordering": {"enabled": arm in ("order", "both")},
        }
    )
    lengths = {str(document): tokens for document, tokens in workload.tokens.items()}
    booster = Booster(settings, count_tokens=lambda text: lengths.get(text) or hint_tokens(text))
    computed: list[float] = []
    cached: list[int] = []
    prompts: list[int] = []
    for context in workload.contexts:
        documents = [Document(str(document), id=str(document)) for document in context]
        total = sum(lengths[document.text] for document in documents)
        entry, question = None, QUESTION_TOKENS
        if arm not in ("reuse", "both_rent"):
            ratio = args.ratio if arm == "both" else None
            boosted = booster.boost("", documents, recompute_ratio=ratio)
            entry = boosted.index_entry
            question += sum(hint_tokens(hint.text) for hint in boosted.hints)
        found = entry.cached_tokens if entry is not None else 0
        bought = entry.bought_tokens if entry is not None else 0
        share = 1.0 if arm in ("plain", "order") else args.ratio
        prompts.append(total + question)
        cached.append(found)
        computed.append(question + bought + share * (total - found - bought))
    half = len(prompts) // 2
    rents = booster.rents
    return {
        "computed_tokens": round(sum(computed)),
        "hit_rate": _share(cached, prompts),
        "steady_computed_tokens": round(sum(computed[half:])),
        "steady_hit_rate": _share(cached[half:], prompts[half:]),
        # Of the documents' computed tokens, by the ledger's own count; 0 without a ledger.
        "cost_over_optimum": round(rents.cost_tokens / max(rents.optimum_tokens, 1), 3),
    }


def hint_tokens(text: str) -> int:
    return len(text) // _CHARACTERS_PER_TOKEN


def _share(parts: Sequence[int], totals: Sequence[int]) -> float:
    return round(sum(parts) / max(sum(totals), 1), 4)
