"""A completion that is assigned to a backend, and the load that it adds there."""

from collections.abc import Callable, Mapping
from contextlib import suppress

from ragboost.booster import Planned
from ragboost.booster.tenants import Tenant
from ragboost.errors import RagBoostError
from ragboost.proxy.routing.affinity import MessagePrefix
from ragboost.proxy.upstream.backends import Backend
from ragboost.rewriting.message_chain import Link
from ragboost.tokens import DEFAULT_TOKENS_PER_BYTE
from ragboost.types import Request

# Planning takes place on the event loop; larger requests are boosted in a thread.
_MAX_PLANNED_TOKENS = 50_000
_MAX_PLANNED_DOCUMENTS = 500


class RoutingRequest:
    """The facts about a request that routing uses.

    Attributes:
        tenant: whose context indexes hold its documents; None: nothing is known about it.
        prefixes: of its messages.
        history: hash of its history as the engine was sent it; empty if unknown.
        prompt_tokens: estimated length.
        tokens_per_byte: of that estimate, as of the lengths of the tenant's documents.
        conversation: unique name; requests of one conversation keep their order. Empty: unnamed.
        is_stream: the first byte of its response shows that its prompt is computed.
        cached_by_backend: tokens of it that the caches hold, by name; empty if nobody asked.
    """

    __slots__ = (
        "_leading",
        "_plan",
        "cached_by_backend",
        "conversation",
        "history",
        "is_stream",
        "prefixes",
        "prompt_tokens",
        "tenant",
        "tokens_per_byte",
    )

    def __init__(
        self,
        *,
        tenant: Tenant | None = None,
        leading: Request | None = None,
        plan: Callable[[], Request | None] | None = None,
        prefixes: tuple[MessagePrefix, ...] = (),
        history: Link = b"",
        prompt_tokens: int = 0,
        tokens_per_byte: float = DEFAULT_TOKENS_PER_BYTE,
        conversation: str = "",
        is_stream: bool = False,
    ) -> None:
        self.tenant = tenant
        self.prefixes = prefixes
        self.history = history
        self.prompt_tokens = prompt_tokens
        self.tokens_per_byte = tokens_per_byte
        self.conversation = conversation
        self.is_stream = is_stream
        self.cached_by_backend: Mapping[str, int] = {}
        self._leading = leading
        self._plan = plan

    @property
    def leading(self) -> Request | None:
        """Its documents, if they are at the front of the payload and may be ordered."""
        if self._plan is not None:
            plan, self._plan = self._plan, None
            with suppress(RagBoostError):  # raised again where the request is rewritten
                self._leading = plan()
        return self._leading

    @property
    def plannable(self) -> Request | None:
        """Its documents, if they can be planned without delaying other requests."""
        leading = self.leading
        if leading is None or self.tenant is None or self.prompt_tokens > _MAX_PLANNED_TOKENS:
            return None
        return leading if len(leading.documents) <= _MAX_PLANNED_DOCUMENTS else None


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
        release: how it left an adaptive waiting room: `at_once`, or after a wait `alone`,
            `planned` with others, because of `max_wait`, or because the room was `full`.
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
        self.release = "at_once"
        self._is_closed = False
        self._prefill_tokens = 0
        self._add_load()

    def __repr__(self) -> str:
        return f"Assignment({self.backend!r}, cached_tokens={self.cached_tokens})"

    def __enter__(self) -> "Assignment":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def uncached_tokens(self) -> int:
        """Tokens of its prompt that the backend has to compute, as far as is known."""
        return max(0, self.request.prompt_tokens - self.cached_tokens)

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
        was_running, self.planned = self.is_running, None
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
        self._prefill_tokens = self.uncached_tokens
        load = self.backend.load
        load.assigned += 1
        load.dispatched += 1
        load.prefill_tokens += self._prefill_tokens

    def _remove_load(self) -> None:
        self.prefill_done()
        self.backend.load.assigned -= 1
        self.backend.load.running -= self.is_running
        self.is_running = False
