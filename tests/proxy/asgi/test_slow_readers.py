"""Clients that do not read their responses: what is buffered for them is bounded, and returned."""

import gc
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

import pytest

from ragboost.proxy.asgi.client_exchange import ClientExchange
from ragboost.proxy.serving.guarded_protocol import GuardedProtocol
from ragboost.proxy.upstream.client import UpstreamResponse
from ragboost.proxy.upstream.response_reader import ResponseReader
from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.sockets import open_request

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
NUM_CLIENTS = 2
T = TypeVar("T")


def objects(kind: type[T]) -> list[T]:
    # Not isinstance, which asks objects of other packages for their `__class__`.
    return [found for found in gc.get_objects() if issubclass(type(found), kind)]


def buffered() -> int:
    """Return the bytes that this process keeps for clients, less what only cycles keep."""
    gc.collect()
    transports = [c._socket for c in objects(GuardedProtocol)]
    return (
        sum(response._payload._size for response in objects(UpstreamResponse))
        + sum(transport.get_write_buffer_size() for transport in transports)
        + sum(sum(map(len, reader._chunks)) for reader in objects(ResponseReader))
        + sum(sum(map(len, exchange._held)) for exchange in objects(ClientExchange))
    )


def num_paused() -> int:
    """Count the backend's connections from which nothing is read."""
    gc.collect()  # those of earlier tests
    protocols = [response._connection.protocol for response in objects(UpstreamResponse)]
    return sum(protocol._reading_paused for protocol in protocols if protocol is not None)


@pytest.mark.parametrize(
    ("kind", "receipts", "max_mib"),
    [
        ("text/event-stream", True, 1),
        ("application/json", False, 9),  # 8 MiB are kept until the usage can be read,
        ("application/json", True, 17),  # and 8 MiB held for the receipt
    ],
)
def test_what_is_buffered_for_clients_that_do_not_read_is_bounded_and_returned(
    engine: FakeEngine,
    start_proxy: Callable[..., ProxyServer],
    kind: str,
    receipts: bool,
    max_mib: int,
) -> None:
    proxy = start_proxy(proxy={"receipts": receipts})
    body = EVENT * (40_000_000 // len(EVENT))
    engine.misbehave(status=200, body=body, headers={"content-type": kind})
    connections = proxy.server.server_state.connections
    messages = [{"role": "user", "content": "why?"}]
    ours = {"documents": ["one", "two"]}
    chat = {"model": "m", "messages": messages, "stream": True, "ragboost": ours}
    with ExitStack() as stack:
        for _ in range(NUM_CLIENTS):
            connection = open_request(proxy.port, "/v1/chat/completions", chat)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stack.enter_context(connection)
        eventually(lambda: sum(c.flow.write_paused for c in list(connections)), equals=NUM_CLIENTS)
        eventually(num_paused, equals=NUM_CLIENTS)
        assert buffered() < NUM_CLIENTS * max_mib * 2**20
        assert num_paused() == NUM_CLIENTS
    eventually(lambda: len(connections) + engine.num_active, equals=0)
    eventually(buffered, equals=0)
