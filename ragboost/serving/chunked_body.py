"""Find the end of a body in chunks, so that what follows it is not parsed with it."""

import re
import sys

_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}")
_FRAME_BYTES = 8  # a chunk's size and line ends, generously


class ChunkedBody:
    """The position in a body in chunks that arrives in pieces.

    5;a=1\\r\\nhello\\r\\n   0\\r\\n        x-trailer: 1\\r\\n\\r\\n
    line   | skipped    last chunk  lines until an empty one
    """

    __slots__ = ("_line", "_num_extra", "_skipped", "has_ended", "is_last_chunk")

    def __init__(self) -> None:
        self.has_ended = False
        self.is_last_chunk = False  # trailers follow
        self._skipped = 0  # bytes of data and its line end that are still to come
        self._line = b""  # the beginning of a line
        self._num_extra = 0

    @property
    def num_extra_bytes(self) -> int:
        return self._num_extra + len(self._line)

    def find_end(self, data: bytes, position: int) -> int:
        """Return the end of the body in `data[position:]`; the end of the data if it has none."""
        while position < len(data) and not self.has_ended:
            if self._skipped:
                step = min(self._skipped, len(data) - position)
                self._skipped -= step
                position += step
                continue
            end = data.find(b"\n", position) + 1
            if not end:
                self._line += data[position:]
                return len(data)
            self._end_line(self._line + data[position:end])
            self._line, position = b"", end
        return position

    def _end_line(self, line: bytes) -> None:
        self._num_extra += len(line)
        if self.is_last_chunk:
            self.has_ended = line == b"\r\n"
            return
        size = _SIZE.match(line)
        num_bytes = int(size[0], 16) if size else sys.maxsize  # httptools refuses it
        self.is_last_chunk = not num_bytes
        self._skipped = num_bytes + 2 if num_bytes else 0
        self._num_extra -= _FRAME_BYTES - 2
