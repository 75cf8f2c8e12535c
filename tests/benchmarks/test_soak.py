"""The soak calls growth what is growth, and tells where the memory is."""

import sys
from subprocess import Popen

import pytest

from benchmarks.processes import listens, stop
from benchmarks.proxy.soak.growth import Sample, slope
from benchmarks.proxy.soak.watched import memory_stages, read_stages
from ragboost.booster.tenants import MAX_TENANTS
from scripts.ports import free_port
from tests.fakes import FakeEngine


def samples(name: str, per_10k: float, *, noise: float = 0.0) -> list[Sample]:
    sign = [1, -1, -1, 1]
    return [
        Sample(250 * i, {name: 100 + per_10k * i / 40 + noise * sign[i % 4]}) for i in range(240)
    ]


@pytest.mark.parametrize(
    ("name", "per_10k", "noise", "grows"),
    [
        ("RSS in use, MB", 0.0, 0.0, False),
        ("RSS in use, MB", 0.1, 0.0, False),
        ("RSS in use, MB", 0.4, 0.0, True),
        ("RSS in use, MB", 20.0, 1.0, True),
        ("RSS in use, MB", -10.0, 0.0, False),
        ("RSS, MB", 10.0, 0.0, False),  # shown, not judged: malloc keeps some of it
    ],
)
def test_growth_is_a_slope_above_its_interval_and_a_small_figure(
    name: str, per_10k: float, noise: float, grows: bool
) -> None:
    found = slope(samples(name, per_10k, noise=noise), name)
    assert found.grows is grows
    assert found.per_10k == pytest.approx(per_10k, abs=2 * noise + 0.01)


def test_samples_before_a_third_of_the_requests_do_not_count() -> None:
    late = samples("RSS, MB", 0.0)[80:]
    early = [Sample(250 * i, {"RSS, MB": float(i)}) for i in range(79)]
    assert slope([*early, *late], "RSS, MB").per_10k == 0


@pytest.mark.skipif(not memory_stages(), reason="needs Linux and glibc 2.33")
def test_a_proxy_in_the_soak_tells_where_its_memory_is(engine: FakeEngine) -> None:
    port, memory_port = free_port(), free_port()
    command = [sys.executable, "-m", "benchmarks.proxy.soak.watched", str(memory_port)]
    proxy = Popen([*command, "serve", "--port", str(port), "--backend", engine.url])
    try:
        assert listens(proxy, port)
        stages = read_stages(memory_port)
        entries = read_stages(memory_port, "containers")
    finally:
        stop(proxy)
    assert set(stages) == set(memory_stages())
    assert all(stages[name] > 0 for name in stages if name != "threads of the pool")
    assert entries["Tenants._tenants"][1] == MAX_TENANTS
    assert entries["CacheFollower._layouts"] == [0, 200]  # a fiftieth of the product's
