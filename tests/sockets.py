"""Raw HTTP over sockets, for requests that client libraries do not send."""

import json
import socket
from typing import Any


def open_request(port: int, path: str, body: dict[str, Any]) -> socket.socket:
    """Send a POST and return its connection with the response unread."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(head.encode() + data)
    return connection


def exchange(port: int, *pieces: bytes) -> bytes:
    """Send bytes and return all bytes received until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for piece in pieces:
            connection.sendall(piece)
        received = b""
        while data := connection.recv(65536):
            received += data
        return received
