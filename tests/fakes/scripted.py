"""ScriptedEndpoint: a chat completion server in threads that answers by a function.

with ScriptedEndpoint(lambda body: "yes") as endpoint: ...
"""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self


class Reply(NamedTuple):
    """A response that is not a completion."""

    status: int
    headers: dict[str, str] = {}  # noqa: RUF012
    body: bytes = b'{"error": {"message": "no"}}'


class ScriptedEndpoint:
    """The server.

    Args:
        answer: called with each request's body; returns the answer's text or a `Reply`.

    Attributes:
        url: base URL, without /v1.
        bodies: decoded requests in order.
        keys: their authorization headers.
    """

    def __init__(self, answer: Callable[[dict[str, Any]], str | Reply]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        endpoint, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:  # a proxy asks for its health, sooner or later
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    endpoint.bodies.append(body)
                    endpoint.keys.append(self.headers["authorization"])
                    found = answer(body)
                if isinstance(found, str):
                    usage = {"prompt_tokens": 7, "completion_tokens": 1}
                    message = {"role": "assistant", "content": found}
                    completion = {"choices": [{"message": message}], "usage": usage}
                    found = Reply(200, {}, json.dumps(completion).encode())
                self.send_response(found.status)
                for name, value in found.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(found.body)))
                self.end_headers()
                self.wfile.write(found.body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
