"""Run `ragboost serve` as a process in front of a backend that keeps the last request.

All traffic is on loopback.
"""

import contextlib
import http.client
import json
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.processes import first_cpu, listens, spawn, stop
from benchmarks.proxy.targets import Target
from scripts.ports import free_port

_ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Yes."}}
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%s\r\n"


class Exchange(NamedTuple):
    """What came of one request: the response, and the body that the backend received.

    The status is 200, or the request was not measured: `body` says why.
    """

    status: int
    headers: Mapping[str, str]
    received: bytes
    body: bytes

    @property
    def num_documents(self) -> int:
        """Documents that the proxy says it found."""
        return int(self.headers.get("x-ragboost-documents", 0))

    @property
    def outcome(self) -> str:
        """Number of documents, or the reason for which nothing was boosted."""
        return self.headers.get("x-ragboost-bypass") or f"{self.num_documents} documents"


class RecordedProxy:
    """A running proxy.

    Attributes:
        target: its process and port.
    """

    def __init__(self, target: Target, received: list[bytes]) -> None:
        self.target = target
        self._received = received

    def post(self, body: Any, *, key: str = "", timeout_s: float = 120) -> Exchange:
        """Send a chat completion; a body may be bytes.

        Args:
            body: of the request.
            key: API key, which is the tenant.
            timeout_s: for the response.
        """
        headers = {"content-type": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._received.clear()
        with contextlib.closing(self._connect(timeout_s)) as connection:
            connection.request("POST", "/v1/chat/completions", data, headers)
            response = connection.getresponse()
            answer = response.read()
            fields = {name.lower(): value for name, value in response.getheaders()}
        received = self._received[-1] if self._received else b""
        return Exchange(response.status, fields, received, answer)

    def is_healthy(self, *, timeout_s: float = 60) -> bool:
        """Ask the proxy for its health."""
        with contextlib.closing(self._connect(timeout_s)) as connection:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.target.port, timeout=timeout_s)


@contextlib.contextmanager
def recorded_proxy(**settings: str) -> Iterator[RecordedProxy]:
    """Start the backend and `ragboost serve`; stop both on exit.

    Args:
        settings: environment variables without `RAGBOOST_`.
    """
    received: list[bytes] = []
    backend = _backend(received)
    port = free_port()
    url = f"http://127.0.0.1:{backend.server_address[1]}"
    options = ["serve", "--backend", url, "--port", str(port)]
    env = {f"RAGBOOST_{name}": value for name, value in settings.items()}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        process = spawn(
            [sys.executable, "-m", "ragboost", *options],
            log=log,
            cpu=first_cpu(),
            env={"RAGBOOST_TOKENS__ASK_BACKEND": "false", **env},
        )
        try:
            if not listens(process, port):
                raise SystemExit(f"ragboost serve did not start:\n{log.read_text()}")
            yield RecordedProxy(Target("ragboost", process, port), received)
        finally:
            stop(process)
            backend.shutdown()
            backend.server_close()


def _backend(received: list[bytes]) -> ThreadingHTTPServer:
    answer = json.dumps(_ANSWER).encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            # The proxy's probes ask for the end of the connection: say that it ends.
            self._answer(b"connection: close\r\n")

        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])))
            self._answer()

        def _answer(self, fields: bytes = b"") -> None:
            self.wfile.write(_HEAD % (len(answer), fields) + answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
