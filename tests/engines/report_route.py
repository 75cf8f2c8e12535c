"""Serve the proxy's route for reports of the in-engine hook by itself, for benchmarks and tests."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ragboost.cache_sync.report_receiver import ReportReceiver


@contextmanager
def report_route(receiver: ReportReceiver) -> Iterator[str]:
    """Receive reports on loopback; yield the URL to configure in the hook."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # a response takes two writes

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            reply = receiver.receive(body, now=time.monotonic())
            self.send_response(200)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    http.server_close()
