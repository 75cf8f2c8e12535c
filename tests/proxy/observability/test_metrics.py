"""Labels of metrics are bounded."""

from ragboost.proxy.observability.metrics import Metrics


def test_model_names_cannot_fill_the_metrics() -> None:
    metrics = Metrics()
    for i in range(500):
        metrics.count_request("chat", f"model-{i}", "ok", seconds=0.1)
    lines = metrics.render().decode().splitlines()
    counters = [line for line in lines if line.startswith("ragboost_requests_total{")]
    assert len(counters) == 101
    assert any('model="other"' in line and line.endswith(" 400.0") for line in counters)
