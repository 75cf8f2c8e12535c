"""The cost of preparing a corpus is counted for every chunk, and bytes are those of its KV."""

from benchmarks.chunks.precompute import measure
from benchmarks.chunks.ttft import build


def test_bytes_do_not_depend_on_the_neighbours_and_time_does() -> None:
    adapter = build("small", layers=1, device="cpu")
    rows = [measure(adapter, num_chunks=3, top_n=top_n) for top_n in (0, 2)]
    assert [row["bytes_per_token"] for row in rows] == [2 * 2 * 64 * 4] * 2
    assert all(row["tokens_per_cpu_s"] > 0 for row in rows)
