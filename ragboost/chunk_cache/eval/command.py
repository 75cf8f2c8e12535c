"""`ragboost eval-reuse`: evaluate selection policies with a model on a file of cases."""

import json
from collections.abc import Sequence
from pathlib import Path

from ragboost.chunk_cache.core.loading import load, load_tokenizer
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval import report
from ragboost.chunk_cache.eval.cases import Case, read_cases
from ragboost.chunk_cache.eval.runner import evaluate
from ragboost.chunk_cache.precompute.prime import measure
from ragboost.chunk_cache.selection import MEASURED, make_policy
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import ChunkCacheError
from ragboost.plots import check_plot

NEIGHBOURS = 4
"""Number of chunks of the previous case that a chunk is computed after for these measurements."""


def run(
    model: Path,
    data: Path,
    *,
    policies: Sequence[str],
    ratios: Sequence[float],
    granularity: int,
    max_new_tokens: int,
    limit: int | None,
    device: str,
    plot_path: Path | None,
    as_json: bool,
) -> str:
    if plot_path is not None:
        check_plot(plot_path)
    for policy in policies:
        make_policy(policy)
    for ratio in ratios:
        if not 0.0 < ratio < 1.0:
            raise ChunkCacheError(
                f"--ratio must be between 0 and 1, got {ratio}; 0 and 1 are always measured"
            )
    cases = read_cases(data, tokenizer=load_tokenizer(model), limit=limit)
    adapter, tokenizer, checked = load(model, device=device)
    reuse = ChunkReuse(adapter, TieredStore(host_bytes=4 << 30))
    if MEASURED & set(policies):
        _measure(reuse, cases)
    rows = evaluate(
        reuse,
        cases,
        policies=policies,
        ratios=ratios,
        granularity=granularity,
        tokenizer=tokenizer,
        max_new_tokens=max_new_tokens,
    )
    for number, task in enumerate(dict.fromkeys(row.task for row in rows)):
        if plot_path is not None:
            at = plot_path if number == 0 else plot_path.with_stem(f"{plot_path.stem}-{number}")
            report.plot(rows, at, task=task)
    if as_json:
        return json.dumps({"rows": report.as_json(rows), "self_test_error": checked.full_error})
    return report.table(rows)


def _measure(reuse: ChunkReuse, cases: Sequence[Case]) -> None:
    for before, case in zip([cases[-1], *cases], cases, strict=False):
        for chunk in case.chunks:
            others = [other for other in before.chunks if other != chunk][:NEIGHBOURS]
            measure(reuse, case.system, chunk, neighbours=others)
