"""`benchmarks.scale.workers` on its smallest size."""

from benchmarks.scale.workers import measure


def test_an_index_process_would_read_each_stream_once() -> None:
    result = measure(3, tokens=160, stored=0.5, block_size=16)

    for row in result["machine"]:
        each, one = row["each_follows"], row["index_process"]
        assert each["event_bytes"] == row["workers"] * one["event_bytes"]
        assert one["exchange_bytes"] > each["exchange_bytes"]
