"""The internals of uvicorn that the guarded protocol relies on.

Also run against the lowest supported uvicorn, by `scripts/check_packages.py`.
"""

import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

import ragboost
from ragboost.proxy.serving.guarded_protocol import GuardedProtocol
from tests.eventually import run_event_loop
from tests.proxy.serving.transport import Transport

OF_A_PROTOCOL = {
    *("cycle", "flow", "headers", "loop", "parser", "pipeline", "scope", "transport", "url"),
    "server_state",
}
OF_A_CYCLE = {
    *("disconnected", "keep_alive", "message_event", "more_body"),
    *("response_complete", "response_started"),
}
OVERRIDDEN = {
    *("__init__", "connection_made", "connection_lost", "data_received", "shutdown"),
    *("pause_writing", "resume_writing"),
    *("on_headers_complete", "on_body", "on_message_complete", "on_response_complete"),
}
USED_BY_CYCLES = {"close", "is_closing", "write"}  # of their transport


async def app(_scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


def stock_protocol(written: list[bytes]) -> HttpToolsProtocol:
    config = Config(app, lifespan="off", ws="none", log_config=None)
    config.load()
    protocol = HttpToolsProtocol(config=config, server_state=ServerState(), app_state={})
    protocol.connection_made(Transport())
    cycles: Any = SimpleNamespace(write=written.append, close=list, is_closing=bool)
    assert set(vars(cycles)) == USED_BY_CYCLES
    protocol.transport = cycles
    return protocol


async def test_a_protocol_and_its_cycles_have_the_state_that_is_read_and_set() -> None:
    written: list[bytes] = []
    protocol = stock_protocol(written)
    protocol.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\na")
    cycle = protocol.cycle
    assert set(vars(protocol)) >= OF_A_PROTOCOL
    assert set(vars(cycle)) >= OF_A_CYCLE
    assert (cycle.more_body, cycle.response_complete, cycle.keep_alive) == (True, False, True)
    assert cycle.scope is protocol.scope
    protocol.data_received(b"b" + b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET")
    assert protocol.pipeline[-1][0] is protocol.cycle is not cycle
    assert protocol.scope is not protocol.cycle.scope, "the head of the third request is open"
    await run_event_loop()
    assert (cycle.more_body, cycle.response_complete) == (False, True)
    assert b"".join(written).count(b"HTTP/1.1 204") == 2
    protocol._unset_keepalive_if_required()


def test_what_is_overridden_is_called_by_uvicorn_with_the_same_parameters() -> None:
    for name in OVERRIDDEN - {"__init__"}:
        ours, theirs = getattr(GuardedProtocol, name), getattr(HttpToolsProtocol, name)
        assert list(inspect.signature(ours).parameters) == list(
            inspect.signature(theirs).parameters
        )
    own = {name for name in vars(GuardedProtocol) if name in dir(HttpToolsProtocol)}
    known = {"__doc__", "__module__", "__annotations__", *OVERRIDDEN}
    assert own - known == set(), "an override of something that this test does not know"
    assert {"pause_reading", "resume_reading", "write_paused"} <= {
        *dir(FlowControl),
        *vars(FlowControl(Transport())),
    }
    start = inspect.signature(HttpToolsProtocol._start_asgi_task)
    assert list(start.parameters) == ["self", "cycle", "app"]
    assert "on_response" in inspect.signature(RequestResponseCycle).parameters


def test_no_other_file_imports_these_internals() -> None:
    package = Path(ragboost.__file__).parent
    guard = "proxy/serving/guarded_protocol.py"
    texts = {str(p.relative_to(package)): p.read_text("utf-8") for p in package.rglob("*.py")}
    pattern = re.compile(r"(import|from) (httptools|uvicorn\.protocols)")
    assert [name for name, text in texts.items() if pattern.search(text)] == [guard]


@pytest.mark.parametrize("is_split", [False, True])
async def test_uvicorn_alone_takes_the_body_of_an_upgrade_for_a_request(is_split: bool) -> None:
    """If this fails, uvicorn has mended it, and the guard can lose a part."""
    protocol = stock_protocol([])
    inner = b"POST /inner HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n"
    head += b"content-length: %d\r\n\r\n" % len(inner)
    for piece in (head, inner) if is_split else (head + inner,):
        protocol.data_received(piece)
    assert protocol.scope["path"] == ("/inner" if is_split else "/")
    await run_event_loop()
