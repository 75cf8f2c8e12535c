"""Labels of metrics are bounded, and what every scraper expects is there."""

from ragboost import __version__
from ragboost.proxy.observability.metrics import Metrics


def test_model_names_cannot_fill_the_metrics() -> None:
    metrics = Metrics()
    for i in range(500):
        metrics.count_request("chat", f"model-{i}", "ok", seconds=0.1)
    lines = metrics.render().decode().splitlines()
    counters = [line for line in lines if line.startswith("ragboost_requests_total{")]
    assert len(counters) == 101
    assert any('model="other"' in line and line.endswith(" 400.0") for line in counters)


def test_version_and_process_are_there_and_no_series_of_creation_times() -> None:
    page = Metrics().render().decode()
    assert f'ragboost_build_info{{version="{__version__}"}} 1.0' in page
    assert "process_resident_memory_bytes" in page
    assert "process_cpu_seconds_total" in page
    assert "_created" not in page
