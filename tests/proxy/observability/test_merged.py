"""Merging what several workers report."""

from prometheus_client.parser import text_string_to_metric_families

from ragboost.proxy.observability.merged import label_metrics, merge_history, merge_readiness
from ragboost.proxy.observability.metrics import Metrics


def test_metrics_keep_every_sample_with_the_number_of_its_worker() -> None:
    workers = Metrics(), Metrics()
    workers[0].count_request("chat", 'a "model"', "ok", seconds=0.1)
    workers[1].count_request("chat", 'a "model"', "ok", seconds=0.1)
    workers[1].count_bypass("no_documents")

    text = label_metrics({number: each.render() for number, each in enumerate(workers)})

    families = {f.name: f for f in text_string_to_metric_families(text.decode())}
    assert families.keys() == {
        family.name
        for each in workers
        for family in text_string_to_metric_families(each.render().decode())
    }
    assert text.count(b"# TYPE ragboost_requests_total counter") == 1
    requests = families["ragboost_requests"].samples
    counted = [s for s in requests if s.name == "ragboost_requests_total"]
    assert [(s.labels["worker"], s.labels["model"], s.value) for s in counted] == [
        ("0", 'a "model"', 1.0),
        ("1", 'a "model"', 1.0),
    ]


def test_readiness_shows_the_worst_state_and_any_problem() -> None:
    def readiness(state: str, sessions: str | None = None) -> dict[str, object]:
        stream = {"backend": "b", "state": state}
        return {"status": "ready", "sessions": sessions, "kv_events": {"b/0": stream}}

    merged = merge_readiness(
        readiness("exact"), [readiness("fallback", "full"), readiness("exact")]
    )

    assert merged["kv_events"]["b/0"]["state"] == "fallback"
    assert merged["sessions"] == "full"
    assert merged["status"] == "degraded"


def test_a_history_adds_the_last_earlier_sample_of_others() -> None:
    own = {"time": [10.0, 15.0, 20.0], "requests": [1.0, 2.0, 3.0]}
    other = {"time": [12.0, 17.0], "requests": [10.0, 20.0]}

    assert merge_history(own, [other]) == {
        "time": [10.0, 15.0, 20.0],
        "requests": [1.0, 12.0, 23.0],
    }
