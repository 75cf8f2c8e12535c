"""What a backend is, by its models, its metrics and its routes."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ragboost.config import BackendSettings
from ragboost.proxy.upstream.backend import Backend
from ragboost.proxy.upstream.engines import find_kind
from ragboost.requests.wires.normal_form import EngineKind


def models(owner: str | None) -> bytes:
    return json.dumps({"data": [{"id": "m", "owned_by": owner}]}).encode()


def kind_of(routes: dict[str, bytes]) -> EngineKind | None:
    """Ask a server that has these routes alone."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = routes.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: Any) -> None:
            pass

    async def ask(port: int) -> EngineKind | None:
        backend = Backend(BackendSettings(url=f"http://127.0.0.1:{port}"))
        try:
            return await find_kind(backend.ask)
        finally:
            await backend.aclose()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            return asyncio.run(ask(server.server_address[1]))
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("routes", "kind"),
    [
        ({"/v1/models": models("vllm"), "/health": b""}, "vllm"),
        ({"/v1/models": models("sglang"), "/health": b""}, "sglang"),
        ({"/health": b"", "/metrics": b"# HELP\nvllm:num_requests_running 1"}, "vllm"),
        ({"/health": b"", "/metrics": b"# HELP\nsglang:token_usage 1"}, "sglang"),
        ({"/v1/models": models("llamacpp"), "/health": b"{}"}, ""),
        ({"/v1/models": models(None)}, "hosted"),
        ({"/v1/models": b"[]", "/health": b""}, ""),
        ({"/v1/models": b'{"data": [3]}'}, "hosted"),
    ],
)
def test_a_backend_is_known_by_what_it_serves(routes: dict[str, bytes], kind: EngineKind) -> None:
    assert kind_of(routes) == kind


def test_a_backend_that_is_down_is_of_no_known_kind() -> None:
    async def ask() -> EngineKind | None:
        return await find_kind(Backend(BackendSettings(url="http://127.0.0.1:9")).ask)

    assert asyncio.run(ask()) is None
