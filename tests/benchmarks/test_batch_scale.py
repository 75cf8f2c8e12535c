"""`benchmarks.scale.batch` on its smallest size."""

from pathlib import Path

import pytest

from benchmarks.datasets.workloads import generate
from benchmarks.scale.batch import measure


@pytest.mark.parametrize("words", [0, 5])
def test_smaller_windows_hit_less_than_the_whole_plan(tmp_path: Path, words: int) -> None:
    rows = measure(generate("zipf", 300), [50, 0], words=words, cache_tokens=10**6, folder=tmp_path)

    assert [row["windows"] for row in rows] == [6, 1]
    assert rows[0]["plain_hit_rate"] < rows[0]["hit_rate"] < rows[1]["hit_rate"]
