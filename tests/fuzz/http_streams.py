"""Make random byte streams of HTTP requests, many of them malformed, from a seed."""

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

_METHODS = ("GET", "GET", "POST", "POST", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH")
_TEXTS = (b"a", b"\r\n", b"\r\n\r\n", b"0\r\n\r\n", b"{}", b"\x00\xff", b"\n", b"5\r\nhello\r\n")
# Framing that parsers disagree about.
_LENGTHS = (b"+%d", b"%d,%d", b"0x%x", b"%d ", b"-%d", b"%d_0", b"0%d", b"%d\x0b", b"%d.0", b"")
_CODINGS = (
    *(b"Chunked", b"chunked, chunked", b"xchunked", b"\x0bchunked", b"identity"),
    *(b"gzip, chunked", b"chunked;q=1", b"chunked\r\ntransfer-encoding: identity", b"chunked,"),
)
_CHUNK_SIZES = (b"0x%x", b"+%x", b"%x ", b" %x", b"-%x", b"%x;a\n", b"fffffffffffffffff%x", b"%x\t")
_TARGET = b"/v0123456789"
_QUIRKS = (b"x-fold: a\r\n b\r\n", b"x : y\r\n", b"x-bare: a\n", b"x\x00: y\r\n", b": y\r\n")


@dataclass(frozen=True)
class SentRequest:
    """A request as it was meant."""

    method: str
    target: str
    body: bytes


@dataclass
class HttpStream:
    """The bytes of one connection.

    Attributes:
        data: all bytes, in order.
        segments: the same, as they are sent.
    """

    data: bytes = b""
    segments: list[bytes] = field(default_factory=list)


def make_stream(seed: int) -> HttpStream:
    """Return the stream of a seed; all its targets begin with `/v1/SEED/`."""
    return _StreamMaker(seed).make()


class _StreamMaker:
    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._prefix = f"/v1/{seed}"
        self._stream = HttpStream()

    def make(self) -> HttpStream:
        is_odd = self._chance(0.7)
        end = f"GET {self._prefix}/end HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        for number in range(self._random.randint(1, 5)):
            self._add_request(number, is_odd)
        self._stream.data += end.encode()
        if self._chance(0.1):
            self._damage()
        self._cut()
        return self._stream

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _add_request(self, number: int, is_odd: bool) -> None:
        method = self._random.choice(_METHODS)
        target = f"{self._prefix}/{number}" + self._random.choice(("", "?q=%0a", "/%0d", "?a?b"))
        body = self._body() if method != "GET" or self._chance(0.2) else b""
        framing, content = self._frame(body, is_odd)
        lines = [framing]
        if self._chance(0.3):
            lines.append(b"x-long: " + b"y" * self._random.randint(0, 3000) + b"\r\n")
        if self._chance(0.15):
            lines.append(b"expect: 100-continue\r\n")
        if self._chance(0.2):
            lines.append(self._random.choice((b"connection: upgrade, x-a\r\n", b"x-a: 1\r\n")))
            lines.append(self._random.choice((b"upgrade: h2c\r\n", b"upgrade: websocket\r\n")))
        if is_odd and self._chance(0.15):
            lines.append(self._random.choice(_QUIRKS))
        if self._chance(0.05):
            lines.append(b"connection: close\r\n")
        self._random.shuffle(lines)
        rest = b"".join(lines) + b"\r\n" + content
        host = b"" if is_odd and self._chance(0.1) else b"host: x\r\n"
        self._stream.data += self._request_line(method, target, is_odd) + host + rest

    def _request_line(self, method: str, target: str, is_odd: bool) -> bytes:
        if not (is_odd and self._chance(0.2)):
            return f"{method} {target} HTTP/1.1\r\n".encode()
        line = self._random.choice(
            (
                *("{m} {t} HTTP/1.0\r\n", "\r\n{m} {t} HTTP/1.1\r\n", "{m}  {t} HTTP/1.1\r\n"),
                *("{m} {t} HTTP/1.2\r\n", "{m} {t} HTTP/1.1\n", "{m} {t} HTTP/1.1 \r\n"),
                *("{m}\t{t} HTTP/1.1\r\n", "{m} {t}\r\n", "{m} http://x{t} HTTP/1.1\r\n"),
                *("CONNECT {t} HTTP/1.1\r\n", "{m} {t} HTTP/2.0\r\n", " {m} {t} HTTP/1.1\r\n"),
            )
        )
        return line.format(m=method, t=target).encode()

    def _body(self) -> bytes:
        parts = [self._random.choice(_TEXTS) for _ in range(self._random.randint(0, 4))]
        if self._chance(0.4):
            inner = f"POST {self._prefix}/inner HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
            parts.append(inner.encode())
        if self._chance(0.1):
            parts.append(self._random.randbytes(self._random.randint(1, 40_000)))
        return b"".join(parts)

    def _frame(self, body: bytes, is_odd: bool) -> tuple[bytes, bytes]:
        """Return a body's header lines and its bytes on the wire."""
        is_odd = is_odd and self._chance(0.3)
        if self._chance(0.4):
            return self._chunked(body, is_odd)
        lines = b"content-length: %d\r\n" % len(body) if body or self._chance(0.5) else b""
        if is_odd:
            size = len(body)
            wrong = self._random.choice(_LENGTHS)
            odd = wrong % ((size,) * wrong.count(b"%"))
            other = max(0, size + self._random.choice((-3, -1, 1, 7, 10_000)))
            changed = self._random.choice(
                (
                    b"content-length: " + odd + b"\r\n",
                    lines * 2,
                    lines + b"content-length: %d\r\n" % other,
                    b"content-length: %d\r\n" % other,
                    lines + b"transfer-encoding: chunked\r\n",
                )
            )
            lines = changed
        return lines, body

    def _chunked(self, body: bytes, is_odd: bool) -> tuple[bytes, bytes]:
        coding, size_format, end, trailer = b"chunked", b"%x", b"\r\n", b""
        if self._chance(0.2):
            size_format = self._random.choice((b"%X", b"000%x", b"%x;a=b", b'%x;a="b"'))
        if self._chance(0.2):
            trailer = b"x-trailer: 1\r\n"
        if is_odd:
            choice = self._random.randrange(4)
            if choice == 0:
                coding = self._random.choice(_CODINGS)
            elif choice == 1:
                size_format = self._random.choice(_CHUNK_SIZES)
            elif choice == 2:
                end = self._random.choice((b"", b"\n", b"\r", b"x\r\n"))
            else:
                trailer = self._random.choice((b"content-length: 3\r\n", b"x\r\n", b"\n"))
        content, position = b"", 0
        while position < len(body):
            size = self._random.randint(1, max(1, len(body) // self._random.randint(1, 5)))
            piece = body[position : position + size]
            content += size_format % len(piece) + b"\r\n" + piece + end
            position += size
        return b"transfer-encoding: %b\r\n" % coding, content + b"0\r\n" + trailer + b"\r\n"

    def _damage(self) -> None:
        """Change one byte, anywhere but in what tells which stream a target is of."""
        data = self._stream.data
        position = self._random.choice([i for i, byte in enumerate(data) if byte not in _TARGET])
        new = self._random.choice((b"", b"\n", b"\r", b" ", b"\x00", b"\xc3", b"x", b":"))
        self._stream.data = data[:position] + new + data[position + 1 :]

    def _cut(self) -> None:
        data, kind = self._stream.data, self._random.randrange(4)
        num_cuts = (0, 1, self._random.randint(2, 20), self._random.randint(20, 200))[kind]
        cuts = sorted(self._random.randrange(1, len(data)) for _ in range(num_cuts))
        bounds = [0, *cuts, len(data)]
        pieces = [data[a:b] for a, b in pairwise(bounds)]
        self._stream.segments = [piece for piece in pieces if piece]
