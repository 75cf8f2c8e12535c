"""Real engines for the tests of this folder, which are skipped if the engine is not installed."""

from collections.abc import Iterator

import pytest

from tests.engines.servers import EngineServer, Kind, missing

KINDS: tuple[Kind, ...] = ("vllm", "sglang")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests of real engines, which take minutes, unless selected with `-m`."""
    if "real_engine" in config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker("real_engine"):
            item.add_marker(pytest.mark.skip(reason="real engines run with -m real_engine only"))


def require(kind: Kind) -> None:
    reason = missing(kind)
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[EngineServer]:
    """Server with KV events and a cache of 2048 tokens, shared by the tests of this folder."""
    require(request.param)
    with EngineServer(request.param, cache_tokens=2048) as server:
        yield server
