"""A backend in the driver's own event loop: it keeps each body and answers as it was told.

Speaks just enough HTTP/1.1 for the proxy's client. Its cost is small beside the proxy's.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

NUMBER_HEADER = "x-fuzz-number"
STATUSES = {"error": 500, "left": 0}  # that the client sees; others: 200


@dataclass(frozen=True)
class Answer:
    """The response to one request, drawn before the request is sent.

    Attributes:
        text: of the assistant's message.
        kind: `ok`, `error` (status 500), `cut` (the connection closes inside the response) or
            `left` (the client disconnects while it waits).
        is_stream: the request asks for a stream.
    """

    text: str
    kind: str = "ok"
    is_stream: bool = False


class Backend:
    """Listen on loopback.

    Attributes:
        bodies: received, by number of the request.
        leave: called, by number of the request, to let its client disconnect.
    """

    def __init__(self) -> None:
        self.bodies: dict[int, list[bytes]] = {}
        self.answers: dict[int, Answer] = {}
        self.leave: dict[int, Callable[[], object]] = {}
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Transport] = set()

    async def listen(self) -> str:
        """Open one more port and return its URL."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self._servers.append(server)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def expect(self, number: int, answer: Answer) -> None:
        """Answer a request in this way; forget what was received for it before."""
        self.answers[number] = answer
        self.bodies[number] = []

    def forget(self, number: int) -> list[bytes]:
        """Return the bodies received for a request, and drop them."""
        del self.answers[number]
        self.leave.pop(number, None)
        return self.bodies.pop(number)

    async def close(self) -> None:
        """Close the ports and all connections."""
        for server in self._servers:
            server.close()
        for transport in list(self._connections):
            transport.abort()
        for server in self._servers:
            await server.wait_closed()

    def opened(self, transport: asyncio.Transport) -> None:
        """Keep a connection, to close it at the end."""
        self._connections.add(transport)

    def lost(self, transport: asyncio.Transport) -> None:
        """Drop a closed connection."""
        self._connections.discard(transport)


class _Connection(asyncio.Protocol):
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._backend.opened(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._backend.lost(self._transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end])
            fields = _headers(head)
            size = int(fields.get("content-length", "0"))
            if len(self._buffer) < end + 4 + size:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + size])
            del self._buffer[: end + 4 + size]
            self._respond(head.split(b" ", 2)[1].decode(), fields.get(NUMBER_HEADER), body)

    def _respond(self, path: str, number: str | None, body: bytes) -> None:
        answer = self._backend.answers.get(int(number)) if number else None
        if number is None or answer is None:
            self._send(404, b'{"error": {"message": "unknown"}}')
            return
        self._backend.bodies[int(number)].append(body)
        if answer.kind == "left":
            self._backend.leave[int(number)]()
            return
        if answer.kind == "error":
            self._send(500, b'{"error": {"message": "no", "type": "server_error", "code": 500}}')
            return
        kind = b"text/event-stream" if answer.is_stream else b"application/json"
        data = encode_answer(path, answer)
        cut = answer.kind == "cut"
        self._send(200, data[: len(data) // 2] if cut else data, kind=kind, size=len(data))
        if cut:
            self._transport.close()

    def _send(
        self, status: int, data: bytes, *, kind: bytes = b"application/json", size: int = -1
    ) -> None:
        length = len(data) if size < 0 else size
        head = b"HTTP/1.1 %d X\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % (status, kind, length) + data)


def _headers(head: bytes) -> dict[str, str]:
    pairs = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return {name.decode().lower(): value.strip().decode("latin-1") for name, _, value in pairs}


def encode_answer(path: str, answer: Answer) -> bytes:
    """Return the body of a complete response."""
    if answer.is_stream:
        return b"".join(_event(fields) for fields in _events(path, answer.text)) + _end(path)
    return json.dumps(_whole(path, answer.text)).encode()


def _whole(path: str, text: str) -> dict[str, Any]:
    if path.endswith("/messages"):
        content = [{"type": "text", "text": text}]
        usage = {"input_tokens": 9, "output_tokens": 2}
        fields = {"type": "message", "role": "assistant", "content": content, "usage": usage}
        return {"id": "msg_1", "model": "m", "stop_reason": "end_turn", **fields}
    if path.endswith("/responses"):
        part = {"type": "output_text", "text": text, "annotations": []}
        item = {"type": "message", "id": "m_1", "role": "assistant", "content": [part]}
        return {"id": "resp_1", "object": "response", "status": "completed", "output": [item]}
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    is_chat = path.endswith("/chat/completions")
    choice.update(
        {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
    )
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    return {"id": "c", "object": "x", "model": "m", "choices": [choice], "usage": usage}


def _events(path: str, text: str) -> list[dict[str, Any]]:
    if path.endswith("/messages"):
        delta = {"type": "text_delta", "text": text}
        return [
            {"type": "message_start", "message": {**_whole(path, ""), "content": []}},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "message_stop"},
        ]
    if path.endswith("/responses"):
        return [
            {"type": "response.output_text.delta", "output_index": 0, "delta": text},
            {"type": "response.completed", "response": _whole(path, text)},
        ]
    half = len(text) // 2
    is_chat = path.endswith("/chat/completions")
    made = []
    for piece in (text[:half], text[half:]):
        choice = {"delta": {"content": piece}} if is_chat else {"text": piece}
        made.append({"id": "c", "choices": [{"index": 0, "finish_reason": None, **choice}]})
    last: dict[str, Any] = {"delta": {}} if is_chat else {"text": ""}
    return [*made, {"id": "c", "choices": [{"index": 0, "finish_reason": "stop", **last}]}]


def _event(fields: dict[str, Any]) -> bytes:
    name = f"event: {fields['type']}\n" if "type" in fields else ""
    return f"{name}data: {json.dumps(fields)}\n\n".encode()


def _end(path: str) -> bytes:
    return b"data: [DONE]\n\n" if path.endswith("/completions") else b""
