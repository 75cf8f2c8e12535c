"""Serve some requests with a model, and choose alpha on the others."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ragboost.chunk_cache.core.loading import find_tokenizer, load
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval.cases import read_cases
from ragboost.chunk_cache.store.influence import Order
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.cli.options import check_paths
from ragboost.errors import ChunkCacheError
from ragboost.plots import check_plot, line_plot
from research.craft.alpha import AlphaCurve, AlphaPoint, tune
from research.craft.reuse import CraftReuse


def run(
    model: Path,
    data: Path,
    *,
    warm_up: int,
    alphas: Sequence[float],
    desired: float,
    literal: bool,
    cautious: bool,
    order: Order,
    max_new_tokens: int,
    device: str,
    plot_path: Path | None,
    as_json: bool,
) -> str:
    """Tune, and return a table or JSON.

    Raises:
        ChunkCacheError: no case is left to tune on, or an alpha is negative.
    """
    check_paths(model=model, data=data)
    if plot_path is not None:
        check_plot(plot_path)
    for alpha in alphas:
        if alpha < 0.0:
            raise ChunkCacheError(f"--alpha must not be negative, got {alpha}")
    cases = read_cases(data, tokenizer=find_tokenizer(model))
    if len(cases) <= warm_up:
        raise ChunkCacheError(
            f"--warm-up {warm_up} leaves no case of {len(cases)} to tune on; give more data"
        )
    adapter, tokenizer, _ = load(model, device=device)
    reuse = ChunkReuse(adapter, TieredStore(host_bytes=4 << 30))
    craft = CraftReuse(reuse, literal=literal, cautious=cautious, order=order)
    for case in cases[:warm_up]:
        craft.prefill(case.system, case.chunks, case.question)
    curve = tune(
        craft,
        cases[warm_up:],
        alphas=alphas,
        desired=desired,
        tokenizer=tokenizer,
        max_new_tokens=max_new_tokens,
    )
    if plot_path is not None:
        _plot(curve, plot_path)
    if as_json:
        best = None if curve.best is None else curve.best.alpha
        points = [_as_json(point) for point in curve.points]
        return json.dumps({"alpha": best, "full": curve.full, "points": points})
    return table(curve, desired=desired)


def table(curve: AlphaCurve, *, desired: float) -> str:
    """Return the curve as a text table, and the chosen alpha."""
    lines = ["alpha     CFO  recomputed   score     +-      KL"]
    for point in curve.points:
        error = 0.0 if math.isnan(point.error) else point.error
        lines.append(
            f"{point.alpha:5.2f}  {point.overhead:6.3f}  {point.recompute_ratio:10.3f}  "
            f"{point.score:6.3f}  {error:5.3f}  {point.kl:6.4f}"
        )
    goal = f"{desired:.0%} of full attention's {curve.full:.3f}"
    if curve.best is None:
        lines.append(f"no alpha reaches {goal}; try higher values, or another policy")
    else:
        lines.append(f"alpha = {curve.best.alpha:g} is the cheapest that reaches {goal}")
    return "\n".join(lines)


def _as_json(point: AlphaPoint) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in asdict(point).items()}


def _plot(curve: AlphaCurve, path: Path) -> None:
    """Plot score against recompute ratio, with full attention's score as a horizontal line."""
    points = sorted((point.recompute_ratio, point.score) for point in curve.points)
    level = [(points[0][0], curve.full), (points[-1][0], curve.full)]
    line_plot(
        path,
        {"Cache-Craft, a point per alpha": points, "full attention": level},
        x_label="recompute ratio",
        y_label="score",
    )
