"""Draw lines into a .png or .svg for the commands that have `--plot`.

Knows numbers and labels. matplotlib comes with the extra `plot` and is imported on use.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ragboost.errors import RequestError, import_extra

Line = Sequence[tuple[float, float]]
"""Points from left to right."""
FloatArray = npt.NDArray[np.float64]


def check_plot(path: Path) -> None:
    """Say before the work what would keep a plot from being written after it.

    Raises:
        MissingExtraError: matplotlib is not installed.
        RequestError: another kind of file, or no such folder.
    """
    if path.suffix not in (".png", ".svg"):
        raise RequestError(f"--plot writes .png or .svg, got {path.name!r}", param="plot")
    if not path.parent.is_dir():
        raise RequestError(f"cannot write {path}: {path.parent} is no directory", param="plot")
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
    """Write a figure with a line and its points for each name.

    Args:
        path: a .png or .svg, replaced where it exists.
        lines: points by name, which the legend shows.
        x_label: what the horizontal axis is, with its unit.
        y_label: what the vertical axis is, with its unit.
        title: stands above.
        y_top: the vertical axis goes from 0 to this; None: as the points need it.
        x_ticks: texts below x = 0, 1, 2, ...; without any, numbers.
        is_crowded_left: spread small x (the axis grows with their square root).

    Raises:
        MissingExtraError: matplotlib is not installed.
        RequestError: another kind of file, or it cannot be written.
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
