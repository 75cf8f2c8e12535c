"""HTTP by hand, for what a client library would not send, and ports."""

import json
import socket
from typing import Any


def open_request(port: int, path: str, body: dict[str, Any]) -> socket.socket:
    """Send a POST and return its connection, of which nothing is read."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(head.encode() + data)
    return connection


def exchange(port: int, *pieces: bytes) -> bytes:
    """Send these bytes and return all that comes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for piece in pieces:
            connection.sendall(piece)
        answer = b""
        while data := connection.recv(65536):
            answer += data
        return answer


def find_unused_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
