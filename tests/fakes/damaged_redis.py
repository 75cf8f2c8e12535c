"""A server that answers Redis' commands with anything but what Redis would."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

SECRET = b"10.1.2.3 internal words"
BULK = b"$%d\r\n%b\r\n" % (len(SECRET), SECRET)
REPLIES = {
    "status": b"+OK\r\n",
    "integer": b":1\r\n",
    "huge integer": b":" + b"9" * 5000 + b"\r\n",
    "no integer": b":abc\r\n",
    "text": BULK,
    "nil": b"$-1\r\n",
    "nil array": b"*-1\r\n",
    "empty array": b"*0\r\n",
    "array of integers": b"*2\r\n:1\r\n:2\r\n",
    "array of odd length": b"*3\r\n" + BULK * 3,
    "array of nil": b"*2\r\n$-1\r\n$-1\r\n",
    "nested array": b"*2\r\n*1\r\n" + BULK + b"*1\r\n" + BULK,
    "deeply nested array": b"*1\r\n" * 5000 + b":1\r\n",
    "no UTF-8": b"$2\r\n\xff\xfe\r\n",
    "error": b"-ERR " + SECRET + b"\r\n",
    "wrong type": b"-WRONGTYPE " + SECRET + b"\r\n",
    "loading": b"-LOADING " + SECRET + b"\r\n",
    "moved": b"-MOVED 1 10.1.2.3:6379\r\n",
    "moved nowhere": b"-MOVED internal words\r\n",
    "no length": b"$abc\r\n",
    "negative length": b"$-5\r\n",
    "length without end": b"$1073741824\r\n" + bytes(1 << 16),
    "array without end": b"*1073741824\r\n" + b":1\r\n" * 10_000,
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "line without end": b"+" + bytes(1 << 17),
    "cut": b"$10\r\nabc",
    "nothing": b"",
}
ENDS = ("length without end", "array without end", "line without end", "cut", "nothing")


class DamagedServer:
    """Answers every command but those of the handshake with one reply."""

    def __init__(self, reply: bytes, *, is_last: bool = False, is_endless: bool = False) -> None:
        self.url = ""
        self.num_bytes = 0  # sent behind an endless reply
        self.num_replies = 0
        self._reply, self._is_last, self._is_endless = reply, is_last, is_endless

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, asyncio.CancelledError):
            while header := await reader.readline():
                words = []
                for _ in range(int(header[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2])
                if words[0].upper() in (b"CLIENT", b"HELLO", b"SELECT"):
                    writer.write(b"+OK\r\n")
                    continue
                writer.write(self._reply)
                self.num_replies += 1
                while self._is_endless and self.num_bytes < 1 << 30:
                    writer.write(bytes(1 << 20))
                    self.num_bytes += 1 << 20
                    await writer.drain()
                if self._is_last:
                    break
                await writer.drain()
        writer.close()


@asynccontextmanager
async def damaged(reply: bytes, **options: bool) -> AsyncIterator[DamagedServer]:
    damaged = DamagedServer(reply, **options)
    server = await asyncio.start_server(damaged.serve, "127.0.0.1", 0)
    async with server:
        damaged.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield damaged
