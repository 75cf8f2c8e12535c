"""The part of a backend that cache synchronisation needs."""

from typing import Protocol


class EngineClient(Protocol):
    """An HTTP client of one engine's server.

    Attributes:
        name: unique among the backends of a proxy.
        url: base URL, without `/v1`.
        is_healthy: it is being sent requests.
        rank: the data-parallel rank whose prefix cache is followed; None: all that it reports.
    """

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def is_healthy(self) -> bool: ...
    @property
    def rank(self) -> int | None: ...

    async def fetch(self, path: str, *, body: bytes | None = None) -> bytes | None:
        """GET a path, or POST a JSON body to it, and return the body of a small response.

        Returns:
            None if the server cannot be reached; empty if the status is not 200.
        """
