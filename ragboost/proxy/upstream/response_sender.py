"""Send a response to the client; its head may wait for a header that the body determines."""

from typing import Any

from starlette.types import Send

from ragboost.rewriting.headers import RawHeaders

_MAX_HELD_BYTES = 8 * 1024 * 1024


class ResponseSender:
    """Sends one response: call `start`, then `body`, then `finish`.

    Args:
        send: to the client.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: dict[str, Any] | None = None  # the head, while it is held
        self._held: list[bytes] = []
        self._held_bytes = 0

    async def start(self, status: int, headers: RawHeaders, *, is_held: bool) -> None:
        """Send the head, or hold it until `finish`, with up to 8 MiB of the body."""
        self._start = {
            "type": "http.response.start",
            "status": status,
            "headers": list(headers),
        }
        if not is_held:
            await self.release()

    async def body(self, data: bytes) -> None:
        """Send a part of the body, which is not the last one."""
        if self._start is None:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > _MAX_HELD_BYTES:
            await self.release()

    async def finish(self, data: bytes, *, header: tuple[bytes, bytes] | None = None) -> None:
        """Send the last part of the body; the header is added to a head that was held."""
        if self._start is not None:
            if header is not None:
                self._start["headers"].append(header)
            data = b"".join([*self._held, data])
            self._held = []
            await self.release()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def release(self) -> None:
        """Send what is held, as it is."""
        if self._start is None:
            return
        start, self._start = self._start, None
        await self._send(start)
        if self._held:
            await self.body(b"".join(self._held))
            self._held = []
