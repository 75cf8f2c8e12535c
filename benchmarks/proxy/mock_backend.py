"""Mock backend of negligible cost: responds to every POST with the same bytes.

    python -m benchmarks.proxy.mock_backend PORT

Started as a process by `benchmarks.proxy`.
"""

import asyncio
import json
import sys
from typing import cast

import uvloop

_USAGE = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
_COMPLETION = json.dumps(
    {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}}],
        "usage": _USAGE,
    }
).encode()
_CHUNK = b'data: {"id":"x","object":"chat.completion.chunk","created":0,"model":"m","choices":[{"index":0,"delta":{"content":"ok"}}]}\n\n'  # noqa: E501
NUM_CHUNKS = 16
_JSON_RESPONSE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
    % (len(_COMPLETION), _COMPLETION)
)
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Backend(asyncio.Protocol):
    """HTTP protocol of one connection, without pipelining of streams."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start with an empty buffer."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not subclass it
        self._buffer = bytearray()

    def data_received(self, data: bytes) -> None:
        """Respond to each complete request in the buffer."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end]).lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            if b'"stream":true' in body or b'"stream": true' in body:
                asyncio.get_running_loop().create_task(self._stream())
            else:
                self._transport.write(_JSON_RESPONSE)

    async def _stream(self) -> None:
        self._transport.write(_STREAM_HEAD + _chunked(_CHUNK))
        for _ in range(NUM_CHUNKS - 1):
            await asyncio.sleep(0)
            self._transport.write(_chunked(_CHUNK))
        self._transport.write(_chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Backend, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
