"""Real engines for the tests of this folder, which are skipped if the engine is not installed.

With several processes of pytest, as in `make test-engines`, all tests of one engine are in the same
one: it starts the engine's servers, while another process tests another engine.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.servers import EngineServer, Kind, missing

KINDS: tuple[Kind, ...] = ("vllm", "sglang")
PUBLIC_KEY = "secret"
FIGURES = "figures"  # property of a test: a line that the end of the test run shows


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests of real engines, which take minutes, unless selected with `-m`."""
    if "real_engine" in config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker("real_engine"):
            item.add_marker(pytest.mark.skip(reason="real engines run with -m real_engine only"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give all tests of an engine to one process of xdist."""
    from xdist.scheduler import LoadScopeScheduling

    class EngineScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return next((kind for kind in ("sglang", "embedded") if kind in nodeid), "vllm")

    return EngineScheduling(config, log) if "real_engine" in config.option.markexpr else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the figures that tests have measured."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, line in report.user_properties:
            if name == FIGURES and report.when == "call":
                terminalreporter.write_line(str(line))


def require(kind: Kind) -> None:
    reason = missing(kind)
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session", params=KINDS)
def shared_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineServer]:
    require(request.param)
    chunks = {"directory": str(tmp_path_factory.mktemp("chunks")), "public_key": PUBLIC_KEY}
    with EngineServer(request.param, cache_tokens=4096, chunks=chunks, dtype="float32") as server:
        assert server.get("/chunk_reuse")["is_possible"], server.log()[-2000:]
        yield server


@pytest.fixture
def server(shared_server: EngineServer) -> EngineServer:
    """Server with KV events, chunk reuse and an empty cache of 4096 tokens, shared by all tests."""
    if not shared_server.is_running:  # a test has killed it
        shared_server.start()
    shared_server.clear_cache()
    return shared_server
