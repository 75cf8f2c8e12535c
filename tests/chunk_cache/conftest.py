"""A clock of their own for tests of stored KV: whether it is worth loading is no matter of the
machine that runs them."""

from itertools import count
from types import SimpleNamespace

import pytest

from tests.eventually import DEADLINE_S

_TICK_S = 1e-6  # each look at the clock: a load is fast, and takes some time


@pytest.fixture(autouse=True)
def loads_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loading KV be faster than computing it, however busy the machine is, and let requests
    wait for it, and for the engine's reports."""
    pytest.importorskip("torch")
    from ragboost.chunk_cache.http import middleware, usage
    from ragboost.chunk_cache.store import background, load_table

    ticks = count()
    clock = SimpleNamespace(perf_counter=lambda: next(ticks) * _TICK_S)
    monkeypatch.setattr(background, "time", clock)
    monkeypatch.setattr(load_table, "MIN_WAIT_S", DEADLINE_S)
    monkeypatch.setattr(load_table, "MAX_WAIT_S", DEADLINE_S)
    monkeypatch.setattr(middleware, "_COMMAND_TIMEOUT_S", DEADLINE_S)
    monkeypatch.setattr(usage, "_REPORT_TIMEOUT_S", DEADLINE_S)
