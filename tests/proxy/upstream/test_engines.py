"""The recompute ratio of a request is what it or a backend says, or else the usual one."""

from typing import Any

import pytest

from ragboost.chunk_cache.selection import DEFAULT_RATIO
from ragboost.config import BackendSettings
from ragboost.proxy.upstream.engines import Engines


@pytest.mark.parametrize(
    ("reuse", "ratio"),
    [
        (None, None),
        ("exact", None),
        ("approx", DEFAULT_RATIO),  # the backend's own is unknown
        ({"policy": "gradual"}, DEFAULT_RATIO),
        ({"ratio": 0.3}, 0.3),
        ({"ratio": 1}, 1),
        ({"ratio": True}, None),
        ({"ratio": 7}, None),
        ({"ratio": "0.3"}, None),
        ({"ratio": float("nan")}, None),
        (["approx"], None),
    ],
)
def test_without_a_report_of_the_backend_the_request_or_the_default_says_the_ratio(
    reuse: Any, ratio: float | None
) -> None:
    probe = Engines(BackendSettings(reuse_chunks=True), [])

    assert probe.recompute_ratio(reuse) == ratio
