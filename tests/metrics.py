"""Read metrics of a server under test."""

import httpx
from prometheus_client.parser import text_string_to_metric_families


def read_metric(url: str, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples that have these labels."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
