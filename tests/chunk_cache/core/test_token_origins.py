"""Reports on prompts survive the way to the API server, and others are not taken for them."""

from typing import Any

import pytest

from ragboost.chunk_cache.core.request import PromptReport, TokenOrigins

ORIGINS = TokenOrigins(exact=7, reused=40, recomputed=6, computed=5)


@pytest.mark.parametrize("reason", [None, "nothing_stored"])
def test_a_report_reads_as_it_was_written(reason: str | None) -> None:
    report = PromptReport(ORIGINS, reason)

    assert PromptReport.read(report.fields) == report


@pytest.mark.parametrize(
    "fields", [None, 3, [], {}, {"exact": 1}, {**ORIGINS._asdict(), "reused": "40"}]
)
def test_other_shapes_are_no_reports(fields: Any) -> None:
    assert PromptReport.read(fields) is None
