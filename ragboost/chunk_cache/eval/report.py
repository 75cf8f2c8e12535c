"""Show evaluation results: a text table, JSON, and a plot of quality against ratio as SVG.

The plot is written by hand, so that it needs no plotting package. Knows rows, nothing of models.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from ragboost.chunk_cache.eval.runner import Row

_COLORS = ("#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#b8860b", "#4d4d4d", "#008b8b", "#d2691e")
_WIDTH, _HEIGHT, _LEFT, _TOP, _LEGEND = 640, 400, 60, 40, 180


def table(rows: Sequence[Row]) -> str:
    """Return the rows as lines of text under a header."""
    head = ("task", "policy", "ratio", "score", "+-", "normalised", "KL", "computed", "TTFT ms")
    body = [
        (
            row.task,
            row.policy,
            f"{row.ratio:.2f}",
            f"{row.score:.3f}",
            f"{row.error:.3f}",
            "-" if math.isnan(row.normalised) else f"{row.normalised:.3f}",
            f"{row.kl:.4f}",
            f"{row.recomputed:.3f}",
            f"{1000 * row.ttft_s:.1f}",
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (head, *body)
    )


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows as objects; a missing normalised score is null."""
    return [
        {name: None if _is_nan(value) else value for name, value in asdict(row).items()}
        for row in rows
    ]


def plot(rows: Sequence[Row], *, task: str) -> str:
    """Return an SVG of score against recompute ratio, a line per policy from full reuse at 0 to
    full attention at 1."""
    chosen = [row for row in rows if row.task == task]
    ends = {row.policy: row for row in chosen if row.policy in ("full", "reuse")}
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in chosen:
        if row.policy not in ends:
            lines.setdefault(row.policy, []).append((row.ratio, row.score))
    for points in lines.values():
        points += [(row.ratio, row.score) for row in ends.values()]
        points.sort()
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + _LEGEND}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH + _LEGEND}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">{escape(task)}: score against recompute ratio'
        "</text>",
        *_axes(),
    ]
    for number, (policy, points) in enumerate(lines.items()):
        color = _COLORS[number % len(_COLORS)]
        path = " ".join(f"{_x(ratio):.1f},{_y(score):.1f}" for ratio, score in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{_x(ratio):.1f}" cy="{_y(score):.1f}" r="3" fill="{color}"/>'
            for ratio, score in points
        ]
        y = _TOP + 18 * number
        parts.append(f'<rect x="{_WIDTH + 10}" y="{y}" width="12" height="12" fill="{color}"/>')
        parts.append(f'<text x="{_WIDTH + 28}" y="{y + 10}">{escape(policy)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _axes() -> list[str]:
    parts = []
    for step in range(6):
        value = step / 5
        parts.append(
            f'<line x1="{_LEFT}" y1="{_y(value):.1f}" x2="{_WIDTH - 20}" y2="{_y(value):.1f}" '
            'stroke="#dddddd"/>'
        )
        parts.append(
            f'<text x="{_LEFT - 8}" y="{_y(value) + 4:.1f}" text-anchor="end">{value:.1f}</text>'
        )
        parts.append(
            f'<text x="{_x(value):.1f}" y="{_HEIGHT - 18}" text-anchor="middle">{value:.1f}</text>'
        )
    return parts


def _x(ratio: float) -> float:
    # The square root spreads small ratios, where the curves differ.
    return _LEFT + math.sqrt(ratio) * (_WIDTH - 20 - _LEFT)


def _y(score: float) -> float:
    return _HEIGHT - 40 - score * (_HEIGHT - 40 - _TOP)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
