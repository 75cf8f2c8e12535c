"""The head of an HTTP request: its ASGI scope, or the reason to refuse it."""

from typing import Any
from urllib.parse import unquote

import httptools

HEAD_END = b"\r\n\r\n"
_CHECKED = frozenset({b"content-length", b"expect", b"host", b"transfer-encoding"})


class HeadScan:
    """The search for the end of a head that arrives in pieces."""

    __slots__ = ("_line", "_tail", "num_bytes")

    def __init__(self) -> None:
        self.num_bytes = 0  # of the head so far
        self._line = b""  # the request line, as far as it is known
        self._tail = b""  # its last three

    def find_end(self, data: bytes, position: int) -> int:
        """Return the end of the head in `data[position:]`; the end of the data if it has none."""
        if tail := self._tail:
            found = (tail + data[position : position + 3]).find(HEAD_END)
            if found >= 0:
                return position + found + len(HEAD_END) - len(tail)
        found = data.find(HEAD_END, position)
        return found + len(HEAD_END) if found >= 0 else len(data)

    def add(self, data: bytes, position: int, end: int) -> None:
        if b"\n" not in self._line:
            line = (self._line + data[position:end]).lstrip(b"\r\n")
            self._line = line[: line.find(b"\n") + 1] or line
        self.num_bytes += end - position
        self._tail = (self._tail + data[max(position, end - 3) : end])[-3:]

    def problem(self) -> tuple[int, str] | None:
        """Return status and message for more than two spaces, which llhttp accepts."""
        if self._line.count(b" ") > 2:
            return 400, "invalid HTTP request: spaces in the request line"
        return None


class RequestHead:
    __slots__ = (
        "_coding",
        "_num_hosts",
        "content_length",
        "expects_continue",
        "headers",
        "is_complete",
        "url",
    )

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []  # names in lower case
        self.is_complete = False
        self.content_length: int | None = None
        self.expects_continue = False
        self._coding: bytes | None = None
        self._num_hosts = 0

    def add(self, name: bytes, value: bytes) -> None:
        if self.is_complete:
            return
        name = name.lower()
        self.headers.append((name, value))
        if name in _CHECKED:
            if name == b"content-length":
                self.content_length = int(value)
            elif name == b"transfer-encoding":
                self._coding = value.lower()
            elif name == b"host":
                self._num_hosts += 1
            else:
                self.expects_continue = value.lower() == b"100-continue"

    def problem(self, method: bytes, version: str) -> tuple[int, str] | None:
        if version not in ("1.1", "1.0"):
            return 505, "only HTTP/1.1 and HTTP/1.0 are supported"
        if method == b"CONNECT":
            return 501, "CONNECT is not supported"
        if self._coding is not None and self._coding != b"chunked":
            return 501, "the only supported transfer-encoding is chunked"
        if self._num_hosts > 1 or (version == "1.1" and not self._num_hosts):
            return 400, f"invalid HTTP request: {self._num_hosts} Host headers"
        return None

    def without_upgrade(self, method: bytes, version: str) -> bytes:
        lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join(lines) + HEAD_END

    def scope(self, method: bytes, version: str, *, root_path: str) -> dict[str, Any]:
        """Return the ASGI scope without the connection's part of it."""
        path, _, query = self.url.partition(b"?")
        if not path.startswith(b"/") and path != b"*":
            parsed = httptools.parse_url(self.url)
            path, query = parsed.path or b"/", parsed.query or b""
        decoded = path.decode("ascii")
        if "%" in decoded:
            decoded = unquote(decoded)
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": method.decode(),
            "root_path": root_path,
            "path": root_path + decoded,
            "raw_path": root_path.encode("ascii") + path,
            "query_string": query,
            "headers": self.headers,
        }
