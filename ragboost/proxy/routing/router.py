"""Choose a backend for each request, and an order for requests that are assigned together.

Scores a backend in tokens: those to be computed for the request and before it, so that a cached
prefix and a long queue can be compared. Does not know bodies, sockets or time.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

from ragboost.booster.tenants import Tenant
from ragboost.config import RouterSettings
from ragboost.errors import RagBoostError
from ragboost.proxy.routing.affinity import PrefixAffinity
from ragboost.proxy.routing.assignment import Assignment, RoutingRequest
from ragboost.proxy.upstream.backends import Backend, Backends

logger = logging.getLogger(__name__)


class Router:
    """Assigns requests to backends; of equal ones, to the one with the fewest so far.

    Attributes:
        backends: the candidates.
        prefixes: the message prefixes that each backend was sent.
    """

    def __init__(self, backends: Backends, settings: RouterSettings) -> None:
        self.backends = backends
        self.prefixes = PrefixAffinity(max_prefixes=settings.max_prefixes)
        self._settings = settings
        backends.on_down.append(lambda backend: self.prefixes.forget(backend.name))

    @property
    def looks_at_caches(self) -> bool:
        """The contents of prefix caches count: several backends, and `cache_aware` routing."""
        return self._settings.policy == "cache_aware" and len(self.backends.all) > 1

    def choose(
        self,
        prompt_tokens: int,
        *,
        cached_tokens: Mapping[str, int],
        exclude: Sequence[Backend] = (),
    ) -> Backend | None:
        """Return the backend with the lowest cost for a request; None if all are excluded.

        Args:
            prompt_tokens: length of the request.
            cached_tokens: how many of these each backend's prefix cache holds, by its name.
            exclude: backends that have been tried.
        """

        def cost(backend: Backend) -> tuple[int, int]:
            load, elsewhere = backend.load, backend.load.elsewhere
            compute = max(0, prompt_tokens - cached_tokens.get(backend.name, 0))
            assigned = load.assigned + elsewhere.assigned
            prefill = load.prefill_tokens + elsewhere.prefill_tokens
            waiting = prefill + self._settings.running_tokens * assigned
            return compute + waiting, load.dispatched

        return min(self.backends.candidates(exclude), key=cost, default=None)

    async def assign(self, requests: Sequence[RoutingRequest]) -> list[Assignment]:
        """Choose a backend for each request, and plan those of a tenant on a backend together.

        Returns:
            Assignments in the order in which to send them. Those planned together are adjacent.
        """
        groups: dict[tuple[Tenant | None, Backend], list[Assignment]] = {}
        released: list[Assignment] = []
        # On a cancellation or an error, only this function can close the assignments.
        with ExitStack() as on_failure:
            for request in requests:
                assignment = await self._place(request, groups)
                on_failure.callback(assignment.close)
                groups.setdefault((request.tenant, assignment.backend), []).append(assignment)
            for (tenant, backend), assignments in groups.items():
                released += await _plan(tenant, backend, assignments) if tenant else assignments
            on_failure.pop_all()
        return released

    async def place(self, request: RoutingRequest) -> Assignment:
        """Choose a backend for a request that is not planned yet."""
        return await self._place(request, {})

    async def _place(
        self,
        request: RoutingRequest,
        groups: Mapping[tuple[Tenant | None, Backend], Sequence[Assignment]],
    ) -> Assignment:
        request.cached_by_backend = cached = await self._cached_tokens(request, groups)
        backend = self.choose(request.prompt_tokens, cached_tokens=cached)
        assert backend is not None, "there are no backends"
        assignment = Assignment(request, backend, cached_tokens=cached.get(backend.name, 0))
        num_bytes = round(request.prompt_tokens / request.tokens_per_byte)
        self.prefixes.remember(backend.name, request.prefixes, num_bytes=num_bytes)
        return assignment

    async def _cached_tokens(
        self,
        request: RoutingRequest,
        groups: Mapping[tuple[Tenant | None, Backend], Sequence[Assignment]],
    ) -> dict[str, int]:
        """Return the tokens of a request that each backend's prefix cache holds, by its name.

        Counts what the cache will hold when the requests already in `groups` have been computed.
        """
        cached: dict[str, int] = {}
        if not self.looks_at_caches:
            return cached
        for backend in self.backends.candidates():
            sent, _ = self.prefixes.longest(backend.name, request.prefixes)
            sent = max(sent, self.prefixes.num_bytes(backend.name, request.history))
            cached[backend.name] = int(sent * request.tokens_per_byte)
            if request.leading is None or request.tenant is None:
                continue
            async with request.tenant.lock:
                booster = request.tenant.booster(backend.name)
                leading = request.leading
                held = booster.cached_tokens(leading.documents, preamble=leading.preamble)
            lengths = booster.tokens.count_documents(leading.documents)
            for assignment in groups.get((request.tenant, backend), ()):
                other = assignment.request.leading
                if other is not None and other.preamble == leading.preamble:
                    there = {document.key for document in other.documents}
                    common = zip(leading.documents, lengths, strict=True)
                    held = max(held, sum(n for document, n in common if document.key in there))
            cached[backend.name] = max(cached[backend.name], held)
        return cached


def expected_tokens(assignment: Assignment) -> int:
    """Return the tokens of a request that its backend has to compute, by its documents if possible.

    Does not wait: while the context index is in use, what is known so far has to do.
    """
    leading, tenant = assignment.request.plannable, assignment.request.tenant
    if leading is not None and tenant is not None and not tenant.lock.locked():
        booster = tenant.booster(assignment.backend.name)
        with suppress(RagBoostError):  # it will be boosted or bypassed later
            held = booster.cached_tokens(leading.documents, preamble=leading.preamble)
            assignment.cached_tokens = max(assignment.cached_tokens, held)
    return assignment.uncached_tokens


async def plan_next(assignments: Sequence[Assignment], *, budget_tokens: float) -> Assignment:
    """Choose which request of a tenant on a backend to send next, and plan its documents.

    Args:
        assignments: not empty, the most urgent one first; all are plannable.
        budget_tokens: that may be computed before the most urgent one.
    """
    tenant = assignments[0].request.tenant
    assert tenant is not None, "a plannable request has a tenant"
    requests = [each.request.plannable for each in assignments]
    async with tenant.lock:
        booster = tenant.booster(assignments[0].backend.name)
        try:
            at, planned = booster.plan_next(
                [request for request in requests if request is not None],
                budget_tokens=budget_tokens,
            )
        except RagBoostError as error:  # each will be boosted or bypassed on its own
            logger.warning("cannot plan %d requests together: %s", len(assignments), error)
            return assignments[0]
    assignment = assignments[at]
    assignment.planned = planned
    assignment.cached_tokens = max(assignment.cached_tokens, planned.cached_tokens)
    return assignment


async def _plan(
    tenant: Tenant, backend: Backend, assignments: list[Assignment]
) -> list[Assignment]:
    plannable = [(a, a.request.leading) for a in assignments if a.request.leading is not None]
    if not plannable:
        return assignments
    async with tenant.lock:
        try:
            window = tenant.booster(backend.name).plan_window([leading for _, leading in plannable])
        except RagBoostError as error:  # each will be boosted or bypassed on its own
            logger.warning("cannot plan %d requests together: %s", len(plannable), error)
            return assignments
    for (assignment, _), planned in zip(plannable, window.planned, strict=True):
        assignment.planned = planned
    others = [assignment for assignment in assignments if assignment.request.leading is None]
    return [*others, *(plannable[at][0] for at in window.release_order)]
