"""Clients reach the backend's paths for inference, not those for its administration."""

import socket
from collections.abc import Callable

import httpx
import pytest

from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer

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
    "/v1//models",
    "//v1/models",
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
