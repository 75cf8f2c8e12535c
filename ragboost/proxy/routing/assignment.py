"""A completion that is assigned to a backend, and the load that it adds there."""

from dataclasses import dataclass

from ragboost.booster import Planned
from ragboost.proxy.routing.affinity import MessagePrefix
from ragboost.proxy.upstream.backends import Backend
from ragboost.rewriting.message_chain import Link
from ragboost.rewriting.tenants import Tenant
from ragboost.types import Request


@dataclass(slots=True, eq=False)
class RoutingRequest:
    """The facts about a request that routing uses.

    Attributes:
        tenant: whose context indexes hold its documents; None: nothing is known about it.
        leading: its documents, if they are at the front of the payload and may be ordered.
        prefixes: of its messages.
        history: hash of its history as the engine was sent it; empty if unknown.
        prompt_tokens: estimated length.
    """

    tenant: Tenant | None = None
    leading: Request | None = None
    prefixes: tuple[MessagePrefix, ...] = ()
    history: Link = b""
    prompt_tokens: int = 0


class Assignment:
    """A request with its backend. It counts as load from its creation to `close`.

    A context manager; `close` may be called more than once.

    Attributes:
        request: the request.
        backend: the backend that it goes to.
        cached_tokens: tokens of it that the backend's prefix cache is expected to hold.
        planned: the order of its documents, if it was planned.
        is_running: it has been sent, or is about to be.
        is_prefilling: it is running, and its response has not begun.
    """

    def __init__(
        self, request: RoutingRequest, backend: Backend, *, cached_tokens: int = 0
    ) -> None:
        self.request = request
        self.backend = backend
        self.cached_tokens = cached_tokens
        self.planned: Planned | None = None
        self.is_running = False
        self.is_prefilling = False
        self._is_closed = False
        self._prefill_tokens = 0
        self._add_load()

    def __repr__(self) -> str:
        return f"Assignment({self.backend!r}, cached_tokens={self.cached_tokens})"

    def __enter__(self) -> "Assignment":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Count the request as sent."""
        if not self.is_running:
            self.is_running = self.is_prefilling = True
            self.backend.load.running += 1

    def prefill_done(self) -> None:
        """Count the prompt as computed: the response has begun."""
        self.backend.load.prefill_tokens -= self._prefill_tokens
        self._prefill_tokens = 0
        self.is_prefilling = False

    def move(self, backend: Backend) -> None:
        """Assign the request to another backend, whose cache is not expected to hold it."""
        was_running = self.is_running
        self._remove_load()
        self.backend, self.cached_tokens = backend, 0
        self._add_load()
        if was_running:
            self.start()

    def close(self) -> None:
        """Remove its load: the response has ended, or the request will not be sent."""
        if not self._is_closed:
            self._is_closed = True
            self._remove_load()

    def _add_load(self) -> None:
        self._prefill_tokens = max(0, self.request.prompt_tokens - self.cached_tokens)
        load = self.backend.load
        load.assigned += 1
        load.dispatched += 1
        load.prefill_tokens += self._prefill_tokens

    def _remove_load(self) -> None:
        self.prefill_done()
        self.backend.load.assigned -= 1
        self.backend.load.running -= self.is_running
        self.is_running = False
