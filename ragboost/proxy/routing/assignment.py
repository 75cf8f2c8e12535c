"""A completion on its way to a backend, and what it counts there."""

from dataclasses import dataclass

from ragboost.booster.planning import Planned
from ragboost.proxy.routing.affinity import MessagePrefix
from ragboost.proxy.upstream.backends import Backend
from ragboost.rewriting.conversations import Link
from ragboost.rewriting.tenants import Tenant
from ragboost.types import Request


@dataclass(slots=True, eq=False)
class RoutingRequest:
    """What the scheduler knows of a request.

    Attributes:
        tenant: whose context indexes hold its documents; None: nothing is known about it.
        front: its documents, where they stand at the front of the payload and may be ordered.
        prefixes: of its messages.
        history: hash of what the engine was sent for the history it goes on from; empty: not known.
        prompt_tokens: estimated length.
    """

    tenant: Tenant | None = None
    front: Request | None = None
    prefixes: tuple[MessagePrefix, ...] = ()
    history: Link = b""
    prompt_tokens: int = 0


class Assignment:
    """A job with its backend. It counts as load from its creation to `close`.

    Use it as a context manager; `close` may be called more than once.

    Attributes:
        job: the request.
        backend: where it goes.
        cached_tokens: what the backend's prefix cache is expected to hold of it.
        planned: the order of its documents, if it was planned.
        is_running: it has been sent, or is about to be.
        is_prefilling: it runs, and the backend has not begun to answer.
    """

    def __init__(self, job: RoutingRequest, backend: Backend, *, cached_tokens: int = 0) -> None:
        self.job = job
        self.backend = backend
        self.cached_tokens = cached_tokens
        self.planned: Planned | None = None
        self.is_running = False
        self.is_prefilling = False
        self._is_closed = False
        self._prefill_tokens = 0
        self._count()

    def __repr__(self) -> str:
        return f"Ticket({self.backend!r}, cached_tokens={self.cached_tokens})"

    def __enter__(self) -> "Assignment":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """It is sent now."""
        if not self.is_running:
            self.is_running = self.is_prefilling = True
            self.backend.load.running += 1

    def answered(self) -> None:
        """The backend began to answer: its prompt has been computed."""
        self.backend.load.prefill_tokens -= self._prefill_tokens
        self._prefill_tokens = 0
        self.is_prefilling = False

    def move(self, backend: Backend) -> None:
        """It goes to another backend, of whose cache nothing is known."""
        was_running = self.is_running
        self._uncount()
        self.backend, self.cached_tokens = backend, 0
        self._count()
        if was_running:
            self.start()

    def close(self) -> None:
        """Its answer is over, or it will never be sent."""
        if not self._is_closed:
            self._is_closed = True
            self._uncount()

    def _count(self) -> None:
        self._prefill_tokens = max(0, self.job.prompt_tokens - self.cached_tokens)
        load = self.backend.load
        load.assigned += 1
        load.dispatched += 1
        load.prefill_tokens += self._prefill_tokens

    def _uncount(self) -> None:
        self.answered()
        self.backend.load.assigned -= 1
        self.backend.load.running -= self.is_running
        self.is_running = False
