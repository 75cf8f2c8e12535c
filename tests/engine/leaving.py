"""A client that leaves a server while its request is computed."""

import json
import socket
from typing import Any
from urllib.parse import urlsplit

from ragboost.engine.runtime.core import Engine
from tests.engine.conftest import Served
from tests.eventually import eventually


def leave_while_running(served: Served, body: dict[str, Any]) -> None:
    """Ask for a completion, leave when it is computed, and wait until the engine is idle."""
    address = urlsplit(served.url)
    data = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head + data)
        eventually(lambda: served.engine.num_running, equals=1)
        if body["stream"]:
            connection.recv(1)
    wait_until_idle(served.engine)


def wait_until_idle(engine: Engine) -> None:
    eventually(lambda: engine.num_running + engine.num_waiting, equals=0)
