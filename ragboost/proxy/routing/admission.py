"""One request's place in a backend's queue, and the load that it adds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from ragboost.booster.tenants import Tenant
from ragboost.booster.tokens import DEFAULT_TOKENS_PER_BYTE
from ragboost.errors import BackendError
from ragboost.ordering import Order
from ragboost.proxy.upstream.backend import Backend
from ragboost.requests.json_body import Link
from ragboost.types import Request

# Planning takes place on the event loop; larger requests are boosted in a thread.
_MAX_PLANNED_TOKENS = 50_000
_MAX_PLANNED_DOCUMENTS = 500


class MessagePrefix(NamedTuple):
    link: Link
    num_bytes: int


@dataclass(eq=False)  # made for each request: a frozen one takes five times as long
class RoutingRequest:
    """Facts of a request that routing reads, never changed; the defaults say that it knows
    nothing."""

    tenant: Tenant | None = None  # whose context indexes hold its documents
    find_leading: Callable[[], Request | None] = lambda: None
    prefixes: Sequence[MessagePrefix] = ()  # of its messages
    prompt_tokens: int = 0  # estimated
    tokens_per_byte: float = DEFAULT_TOKENS_PER_BYTE  # of that estimate
    conversation: str = ""  # unique name; its requests keep their order
    priority: int = 0  # of those that wait, the least goes first
    is_stream: bool = False  # the first byte shows that the prompt is computed

    @cached_property
    def leading(self) -> Request | None:
        """Its documents, if they are at the front of the payload and may be ordered."""
        return self.find_leading()

    @property
    def plannable(self) -> Request | None:
        """Its documents, if they can be planned without delaying other requests."""
        if self.tenant is None or self.prompt_tokens > _MAX_PLANNED_TOKENS:
            return None
        leading = self.leading
        if leading is None or len(leading.documents) > _MAX_PLANNED_DOCUMENTS:
            return None
        return leading


UNKNOWN_REQUEST = RoutingRequest()


class AdmissionControl(Protocol):
    """The owner of admissions; see `Dispatcher`."""

    def fail_over(self, admission: "Admission", error: BackendError) -> bool: ...

    def begun(self, admission: "Admission", *, is_stream: bool) -> None: ...

    def update(self) -> None: ...


class Awaits(NamedTuple):
    """Cached tokens of a request that its backend still computed for another one."""

    tokens: int = 0
    other: "Admission | None" = None


NO_AWAITS = Awaits()


class Admission:
    """One request's place in a backend's queue, from its assignment to the end of its response.

    A context manager; it counts as load from `assign` to `close`, which may be called twice. Only
    routing changes it.
    """

    def __init__(
        self, control: AdmissionControl, request: RoutingRequest = UNKNOWN_REQUEST
    ) -> None:
        self.request = request
        self.planned: Order | None = None  # the order of its documents, if it was planned
        self.awaits = NO_AWAITS  # when it was sent, until its response begins
        self.begun_at: float | None = None
        self.is_running = False  # it has been sent, or is about to be
        self.is_prefilling = False  # it is running, and its response has not begun
        # How it left the waiting room: `at_once`, or after a wait `alone`, `planned` with others,
        # because of `max_wait`, or because the room was `full`.
        self.release = "at_once"
        self.waited_s = 0.0
        self.tried: list[Backend] = []
        # Tokens of it in each prefix cache, by number of the backend; empty if not looked for.
        self.cached_by_backend: Sequence[float] | npt.NDArray[np.float64] = ()
        self._control = control
        self._backend: Backend | None = None
        self._cached_tokens = 0
        self._is_closed = False
        self._prefill_tokens = 0

    def __repr__(self) -> str:
        return f"Admission({self._backend!r}, cached_tokens={self.cached_tokens})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._control.update()

    @property
    def backend(self) -> Backend:
        assert self._backend is not None, "the request is not assigned yet"
        return self._backend

    @property
    def cached_tokens(self) -> int:
        """Tokens of it that the backend's prefix cache should hold; 0 for one that has none."""
        is_absent = self._backend is not None and self._backend.prefix_cache.is_absent
        return 0 if is_absent else self._cached_tokens

    @property
    def uncached_tokens(self) -> int:
        return max(0, self.request.prompt_tokens - self.cached_tokens)

    @property
    def notes(self) -> dict[str, str | int | float | None]:
        if self._backend is None:
            return {}
        return {
            "backend": self._backend.name,
            "queue_ms": round(self.waited_s * 1000, 3),
            "release": self.release,
            "cached_tokens_predicted": self.cached_tokens,
            "failovers": len(self.tried),
        }

    def cached_in(self, backend: Backend) -> int:
        """Return the tokens of it that a backend's prefix cache held when it was routed."""
        return int(self.cached_by_backend[backend.number]) if len(self.cached_by_backend) else 0

    def expect(self, cached_tokens: int) -> None:
        """Note that the backend's prefix cache should hold at least so much of it."""
        self._cached_tokens = max(self._cached_tokens, cached_tokens)

    def assign(self, backend: Backend, *, cached_tokens: int = 0) -> None:
        """Count the request as load of a backend, whose cache is expected to hold so much of it."""
        assert self._backend is None, "a request is assigned once, and then moved"
        self._backend, self._cached_tokens = backend, cached_tokens
        self._add_load(backend)

    def start(self) -> None:
        if not self.is_running:
            self.is_running = self.is_prefilling = True
            self.backend.add_load(running=1)

    def move(self, backend: Backend) -> None:
        """Assign the request to another backend, whose cache is not expected to hold it."""
        was_running, self.planned = self.is_running, None
        self._remove_load()
        self._backend, self._cached_tokens = backend, 0
        self._add_load(backend)
        if was_running:
            self.start()

    def fail_over(self, error: BackendError) -> bool:
        return self._control.fail_over(self, error)

    def prefill_done(self, *, is_stream: bool = False) -> None:
        self._control.begun(self, is_stream=is_stream)

    def count_computed(self) -> None:
        if self._backend is not None:
            self._backend.add_load(prefill_tokens=-self._prefill_tokens)
        self._prefill_tokens = 0
        self.is_prefilling = False

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed, self.awaits = True, NO_AWAITS
            self._remove_load()

    def _add_load(self, backend: Backend) -> None:
        self._prefill_tokens = self.uncached_tokens
        backend.add_load(assigned=1, prefill_tokens=self._prefill_tokens)

    def _remove_load(self) -> None:
        if self._backend is None:
            return
        running, tokens = -self.is_running, -self._prefill_tokens
        self._backend.add_load(assigned=-1, running=running, prefill_tokens=tokens)
        self.is_running = self.is_prefilling = False
        self._prefill_tokens = 0
