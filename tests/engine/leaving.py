"""Client that disconnects while its request is computed."""

from typing import Any
from urllib.parse import urlsplit

from ragboost.engine.runtime.engine import Engine
from tests.engine.conftest import Served
from tests.eventually import eventually
from tests.sockets import open_request


def leave_while_running(served: Served, body: dict[str, Any]) -> None:
    """Request a completion, disconnect while it is computed, and wait until the engine is idle."""
    port = urlsplit(served.url).port
    assert port is not None
    with open_request(port, "/v1/completions", body) as connection:
        eventually(lambda: served.engine.num_running, equals=1)
        if body["stream"]:
            connection.recv(1)
    wait_until_idle(served.engine)


def wait_until_idle(engine: Engine) -> None:
    eventually(lambda: engine.num_running + engine.num_waiting, equals=0)
