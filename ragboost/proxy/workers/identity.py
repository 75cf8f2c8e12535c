"""A worker's place among the workers of one proxy."""

import secrets
from dataclasses import dataclass, field


@dataclass(frozen=True)
class WorkerIdentity:
    """The facts that one worker knows about itself and the others; they outlive its process."""

    worker_id: int  # from 0
    num_workers: int
    folder: str  # private to the proxy, for sockets and shared files
    group: str  # identifies the proxy among its replicas
    token: str = field(repr=False)  # a worker adds it to the requests that it hands over
    port: int = 0  # on loopback, for requests of the other workers; 0 before it listens

    @classmethod
    def of_all(cls, num_workers: int, folder: str) -> tuple["WorkerIdentity", ...]:
        common = num_workers, folder, secrets.token_hex(8), secrets.token_hex(16)
        return tuple(cls(worker_id, *common) for worker_id in range(num_workers))

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(i for i in range(self.num_workers) if i != self.worker_id)

    def address(self, worker_id: int) -> str:
        return f"ipc://{self.folder}/{worker_id}"

    def name(self, worker_id: int) -> str:
        return f"{self.group}/{worker_id}"
