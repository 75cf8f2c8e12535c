"""Plots of the commands, as files."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from ragboost.errors import RequestError
from ragboost.util.plots import check_plot, line_plot

pytest.importorskip("matplotlib", reason="needs the extra plot")
LINES = {"plain": [(0.0, 0.2), (0.5, 0.5), (1.0, 0.9)], "boosted": [(0.0, 0.3), (1.0, 0.8)]}


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_lines_with_names_become_a_picture(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plot{suffix}"

    line_plot(path, LINES, x_label="ratio", y_label="score", is_crowded_left=True)

    if suffix == ".svg":
        text = path.read_text("utf-8")
        ElementTree.fromstring(text)
        assert all(f"<!-- {name} -->" in text for name in ("plain", "boosted", "ratio", "score"))
    else:
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("plot.pdf", "writes .png or .svg, got 'plot.pdf'"), ("none/plot.png", "is not a directory")],
)
def test_what_cannot_be_written_is_said_before_the_work(
    tmp_path: Path, name: str, sentence: str
) -> None:
    with pytest.raises(RequestError, match=sentence):
        check_plot(tmp_path / name)
