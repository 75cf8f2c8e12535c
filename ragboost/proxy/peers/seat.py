"""A worker's place among the workers of one proxy."""

import secrets
from dataclasses import dataclass, field


@dataclass(frozen=True)
class WorkerSeat:
    """The facts that one worker knows about itself and the others; they outlive its process.

    Attributes:
        number: of the worker, from 0.
        num_workers: of the proxy.
        folder: private to the proxy, for sockets and shared files.
        group: identifies the proxy among its replicas.
        token: which a worker adds to the requests that it hands over.
        port: on loopback, at which this worker takes requests from the others; 0 before it listens.
    """

    number: int
    num_workers: int
    folder: str
    group: str
    token: str = field(repr=False)
    port: int = 0

    @classmethod
    def of_all(cls, num_workers: int, folder: str) -> tuple["WorkerSeat", ...]:
        """Return the seats of all workers of a proxy."""
        common = num_workers, folder, secrets.token_hex(8), secrets.token_hex(16)
        return tuple(cls(number, *common) for number in range(num_workers))

    @property
    def others(self) -> tuple[int, ...]:
        """The numbers of the other workers."""
        return tuple(number for number in range(self.num_workers) if number != self.number)

    def address(self, number: int) -> str:
        """Return the ZeroMQ address at which a worker publishes."""
        return f"ipc://{self.folder}/{number}"
