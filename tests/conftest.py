"""Fixtures: a FakeEngine, the proxy as a real server in front of it, and a Redis server."""

import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings

from scripts.ports import free_port
from tests.eventually import DEADLINE_S
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.fakes.redis import PROGRAM, RedisServer

# The workers of a run share the cores: threads of PyTorch would spin while they wait for others'.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Slow machines must not fail tests: Hypothesis examples have no deadline,
settings.register_profile("slow", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slow")
# and httpx waits longer than its default of 5 s. All its functions share this default object.
_timeout = inspect.signature(httpx.Client).parameters["timeout"].default
_timeout.connect = _timeout.read = _timeout.write = _timeout.pool = DEADLINE_S

TESTS = Path(__file__).parent
# Tests that start processes of their own, or run whole benchmarks, examples and demonstrations.
PROCESS_TESTS = (
    *("benchmarks", "evaluation/demo", "deploy", "research", "integrations"),
    *("test_docs.py", "test_examples.py", "test_extras.py", "test_hub_models.py"),
    "proxy/test_doctor.py",
    "proxy/test_try.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `make test` leaves to `make test-all`."""
    for item in items:
        if any(item.path.is_relative_to(TESTS / name) for name in PROCESS_TESTS):
            item.add_marker(pytest.mark.process)


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine() as engine:
        yield engine


@pytest.fixture
def proxy(engine: FakeEngine) -> Iterator[ProxyServer]:
    with ProxyServer(proxy_settings(engine.url)) as proxy:
        yield proxy


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    pytest.importorskip("redis", reason="needs the extra redis")
    if PROGRAM is None:
        pytest.skip("neither redis-server nor valkey-server is on PATH")
    with RedisServer() as server:
        yield server


@pytest.fixture
def unused_port() -> int:
    """Port on which no server listens."""
    return free_port()


@pytest.fixture
def start_proxy(engine: FakeEngine) -> Iterator[Callable[..., ProxyServer]]:
    """Function that starts a proxy with given settings, stopped after the test."""
    started: list[ProxyServer] = []

    def start(**sections: dict[str, Any]) -> ProxyServer:
        started.append(ProxyServer(proxy_settings(engine.url, **sections)).__enter__())
        return started[-1]

    yield start
    for proxy in started:
        proxy.__exit__()
