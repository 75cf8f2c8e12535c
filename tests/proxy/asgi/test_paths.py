"""Clients reach the backend's paths for inference, not those for its administration."""

import socket
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from ragboost.proxy.app import create_app
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings

Start = Callable[..., ProxyServer]

INFERENCE = (
    "/v1/models",
    "/v1/models/",
    "/v1/models/org/name%20of%2Fmodel?x=/sleep",
    "/v1/embeddings",
    "/v1/chat/completions/chatcmpl-1",
    "/v1/responses/resp_1/input_items",
    "/v1/messages/count_tokens",
    "/v1/messages/batches/b/results",
    "/v1/audio/transcriptions",
    "/v1/files/file-1/content",
    "/v1/rerank",
    "/v2/rerank",
    "/tokenize",
    "/v1/detokenize",
    "/generate",
    "/inference/v1/generate",
)
ADMINISTRATION = (
    "/",
    "/sleep",
    "/wake_up?tags=weights",
    "/flush_cache",
    "/update_weights_from_disk",
    "/collective_rpc",
    "/server_info",
    "/get_server_info",
    "/abort_request",
    "/v1",
    "/v1/",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/organization/admin_api_keys",
    "/v1/modelsx",
    "/V1/models",
)
TRICKS = (
    "//sleep",
    "/v1/models/../../sleep",
    "/v1/models/..%2f..%2fsleep",
    "/v1/models/%2e%2e/%2e%2e/sleep",
    "/v1/models/%252e%252e/%252e%252e/sleep",
    "/v1/models/..;/..;/sleep",
    "/v1/models/..%5c..%5csleep",
    "/v1/models/%c0%ae%c0%ae/sleep",
    "/v1/models/.%20/x",
    "/v1%2fload_lora_adapter",
    "/v1/models/%0d%0a/sleep",
    "/v1/models/%00/sleep",
    "/v1/./load_lora_adapter",
    "/tokenize/../sleep",
)


def send(proxy: ProxyServer, target: str, *, method: str = "POST") -> bytes:
    """Send a target as it is: HTTP clients normalise it. Return the head of the response."""
    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        head = f"{method} {target} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\n"
        connection.sendall(f"{head}connection: close\r\ncontent-length: 0\r\n\r\n".encode())
        return connection.makefile("rb").read()


@pytest.fixture
def guarded(start_proxy: Start) -> ProxyServer:
    return start_proxy(
        proxy={"forwarded_paths": (), "api_keys": ["k"]}, backend={"api_key": "backend-key"}
    )


def test_the_paths_of_inference_are_forwarded(guarded: ProxyServer, engine: FakeEngine) -> None:
    for path in INFERENCE:
        for method in ("GET", "POST", "OPTIONS"):
            assert send(guarded, path, method=method).startswith(b"HTTP/1.1 200"), path
            assert engine.requests[-1].path == path


@pytest.mark.parametrize("path", [*ADMINISTRATION, *TRICKS, "*"])
def test_no_other_path_reaches_the_backend(
    guarded: ProxyServer, engine: FakeEngine, path: str
) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        answer = send(guarded, path, method=method)
        if (method, path) == ("GET", "/"):  # our own: it says where everything is
            assert b'"clients":"/v1"' in answer
            continue
        assert not answer.startswith(b"HTTP/1.1 2"), path
        if path != "*":
            assert answer.startswith(b"HTTP/1.1 403"), path
            assert b"proxy.forwarded_paths" in answer
            assert b'"type":"permission_error"' in answer
    assert engine.requests == []


def test_a_base_url_without_v1_or_with_two_is_named(
    guarded: ProxyServer, engine: FakeEngine
) -> None:
    for path, problem in (
        ("/chat/completions", b"base URL lacks /v1"),
        ("/sessions", b"base URL lacks /v1"),
        ("/v1/v1/chat/completions", b"base URL has /v1 twice"),
    ):
        assert b"403 Forbidden" in (answer := send(guarded, path))
        assert problem in answer
    assert engine.requests == []


@pytest.mark.parametrize("forwarded", [(), ("/",)])
def test_two_slashes_in_a_row_are_named(
    start_proxy: Start, engine: FakeEngine, forwarded: Sequence[str]
) -> None:
    proxy = start_proxy(proxy={"forwarded_paths": forwarded})
    paths = ["//v1/chat/completions", "/v1//chat/completions", "/v1/chat/completions//"]
    for path in [*paths, *([] if forwarded else ["//v1/models", "/v1%2f%2fmodels"])]:
        answer = send(proxy, path)
        assert b"403 Forbidden" in answer
        assert b"two slashes in a row (//)" in answer, path
    assert engine.requests == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
def test_a_slash_at_the_end_of_a_completion_is_the_same_route(
    guarded: ProxyServer, engine: FakeEngine, path: str
) -> None:
    question = [{"role": "user", "content": "why?"}]
    body: dict[str, Any] = (
        {"prompt": "why?"} if path == "/v1/completions" else {"messages": question}
    )
    body |= {"model": "m", "ragboost": {"documents": ["one", "two"]}}
    headers = {"authorization": "Bearer k"}
    answer = httpx.post(f"{guarded.url}{path}/?a=b", json=body, headers=headers)
    assert (answer.status_code, answer.headers["x-ragboost-documents"]) == (200, "2")
    assert engine.requests[-1].path == f"{path}?a=b"


def test_a_slash_at_the_end_of_any_own_route_is_the_same_route(
    guarded: ProxyServer, engine: FakeEngine
) -> None:
    with httpx.Client(base_url=guarded.url, headers={"authorization": "Bearer k"}) as client:
        for path in ("/health/", "/ready/", "/version/", "/metrics/", "/dashboard/"):
            assert client.get(path).status_code == 200, path
        assert client.head("/health/").status_code == 200
        session = client.post("/v1/sessions/", json={"model": "m"}).json()["id"]
        turn = client.post(f"/v1/sessions/{session}/chat/completions/", json={"query": "why?"})
        assert turn.status_code == 200
        assert client.get(f"/v1/sessions/{session}/").json()["num_turns"] == 1
        assert client.delete(f"/v1/sessions/{session}/").status_code == 200
    assert [received.path for received in engine.requests] == ["/v1/chat/completions"]


def test_a_mounted_proxy_has_its_routes_with_a_slash_too(engine: FakeEngine) -> None:
    proxy = create_app(proxy_settings(engine.url))
    app = Starlette(routes=[Mount("/rag", proxy)], lifespan=proxy.router.lifespan_context)
    with TestClient(app) as client:
        assert client.get("/rag/health/").status_code == 200


def test_the_operator_may_allow_further_paths(start_proxy: Start, engine: FakeEngine) -> None:
    allowed = ["/v1/load_lora_adapter", "/flush_cache/"]
    proxy = start_proxy(proxy={"forwarded_paths": allowed})
    for path in ("/v1/load_lora_adapter", "/v1/load_lora_adapter/x", "/flush_cache", "/v1/models"):
        assert httpx.post(proxy.url + path).status_code == 200
    for path in ("/v1/unload_lora_adapter", "/sleep", "/flush_cache_2"):
        assert httpx.post(proxy.url + path).status_code == 403
    proxy = start_proxy(proxy={"forwarded_paths": ["/"]})
    assert send(proxy, "//sleep").startswith(b"HTTP/1.1 200")
    assert len(engine.requests) == 5


def test_without_a_key_nobody_learns_which_paths_are_forwarded(guarded: ProxyServer) -> None:
    for path in ("/v1/models", "/sleep"):
        assert httpx.get(guarded.url + path).status_code == 401
