"""Draw line plots to .png or .svg files; imports matplotlib on first use."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ragboost.errors import RequestError, import_extra

Line = Sequence[tuple[float, float]]
"""Points from left to right."""
FloatArray = npt.NDArray[np.float64]


def check_plot(path: Path) -> None:
    """Check that a plot can be written, before the work whose result it shows."""
    if path.suffix not in (".png", ".svg"):
        raise RequestError(f"--plot writes .png or .svg, got {path.name!r}", param="plot")
    if not path.parent.is_dir():
        raise RequestError(f"cannot write {path}: {path.parent} is not a directory", param="plot")
    import_extra("matplotlib.figure", extra="plot")


def line_plot(
    path: Path,
    lines: Mapping[str, Line],
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    y_top: float | None = None,
    x_ticks: Sequence[str] = (),
    is_crowded_left: bool = False,
) -> None:
    """Plot lines by name, with markers and a legend.

    `y_top` is the upper end of an axis that starts at 0, `x_ticks` are labels of x = 0, 1, 2, ...
    `is_crowded_left` spreads out small x with a square-root axis.
    """
    check_plot(path)
    figure = import_extra("matplotlib.figure", extra="plot").Figure(
        figsize=(7, 4.2), layout="constrained"
    )
    axes = figure.subplots()
    for name, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    if is_crowded_left:
        axes.set_xscale("function", functions=(_roots, _squares))
    if x_ticks:
        axes.set_xticks(range(len(x_ticks)), x_ticks)
    if y_top is not None:
        axes.set_ylim(0, y_top)
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}", param="plot") from None


def _roots(values: FloatArray) -> FloatArray:
    return np.sign(values) * np.sqrt(np.abs(values))


def _squares(values: FloatArray) -> FloatArray:
    return np.sign(values) * np.square(values)
