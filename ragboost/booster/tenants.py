"""Keep tenants apart: one per model, cache salt and team.

Each backend has a prefix cache of its own, so that a tenant has a Booster per backend, and a
directory of what all of them hold.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ragboost.booster.booster import Booster
from ragboost.booster.compose import Retrieved
from ragboost.booster.context import Context
from ragboost.booster.tokens import DEFAULT_TOKENS_PER_BYTE, TokenCounter, make_counter
from ragboost.config import DedupSettings, OrderingSettings, Settings
from ragboost.errors import RagBoostError
from ragboost.index import EvictionForecast, Holders, PrefixDirectory, Seat
from ragboost.ordering import make_order_policy
from ragboost.types import DocumentLike
from ragboost.util.bounded_map import BoundedMap

MAX_TENANTS = 1024  # one per model, cache salt and team
_MAX_MODELS = 64
_MAX_NAME = 256
_ALL = 256  # requests of which all orders are compared, so that there are figures from the first on
_SAMPLED = "0"  # first digit of the keys of sampled documents
_SAMPLE = 1 / 16
_MIN_NODES = 10_000  # of one backend's index


class TenantKey(NamedTuple):
    """The properties that requests must share to use one context index.

    Model and salt select a prefix cache in the engine. They are short and printable: this is where
    the client's text becomes a key in memory, a label of metrics and a field of the log.
    """

    model: str  # named by the request, or a hash of a name that cannot be shown; empty without one
    cache_salt: str
    team: str = ""  # of the request's API key; empty where all keys are of one team

    @classmethod
    def of(cls, fields: Mapping[str, Any], *, team: str = "") -> "TenantKey":
        """Return the key of a request; fields that are not strings count as absent."""
        model, salt = fields.get("model"), fields.get("cache_salt")
        return cls(
            bounded_name(model) if isinstance(model, str) else "",
            bounded_name(salt) if isinstance(salt, str) else "",
            team,
        )


class CacheMode(NamedTuple):
    """The state of knowledge about one backend's prefix cache."""

    is_exact: bool = False  # its events say what it holds
    capacity_tokens: int | None = None  # its size, where the backend reports it
    # Forecast of what its requests in flight will evict; None if not followed.
    eviction_forecast: EvictionForecast | None = None


class Residents(NamedTuple):
    """The backends that hold a request's documents, as bits of their numbers."""

    cached: Sequence[Holders]  # of the longest prefix that the documents can have there
    recent: Sequence[Holders]  # of each document, wherever it stood; may name a backend repeatedly


class Tenant:
    """A Booster per backend, and the lock under which they are used.

    The lock keeps the event loop from waiting for a worker thread that boosts a large request.

    Args:
        numbers: of the backends, by name; grows. None: there is one, and no directory.
        tokens: lengths of documents, for all its Boosters; None: its own.
    """

    def __init__(
        self,
        key: TenantKey,
        settings: Settings,
        modes: Mapping[str, CacheMode] | None = None,
        *,
        numbers: dict[str, int] | None = None,
        tokens: TokenCounter | None = None,
    ) -> None:
        self.key = key
        self.tokens = make_counter(settings.tokens) if tokens is None else tokens
        self.lock = asyncio.Lock()
        self._modes = {} if modes is None else modes
        self._settings = settings
        self.numbers = {} if numbers is None else numbers  # of the backends' bits, by name
        self._directory: PrefixDirectory | None = None
        if numbers is not None:
            self._directory = PrefixDirectory()
        self._policy = make_order_policy(settings.ordering, is_hinted=settings.hints.order)
        self._boosters: dict[str, Booster] = {}
        self._forgotten: list[Booster] = []  # not yet out of the directory
        self._originals: dict[str, Booster] = {}

    def booster(self, backend: str) -> Booster:
        booster = self._boosters.get(backend)
        if booster is None:
            # What `forget` has dropped meanwhile leaves first, or two indexes would have one bit.
            self._leave_directory()
            seat = None
            if self._directory is not None:
                seat = Seat(self._directory, 1 << number_of(backend, self.numbers))
            booster = Booster(
                self._settings,
                tokens=self.tokens,
                policy=self._policy,
                seat=seat,
            )
            nodes = self._settings.proxy.memory.nodes // (2 * self._settings.num_backends)
            booster.index.max_nodes = max(nodes, _MIN_NODES)
            booster.residency.follow(**self._modes.get(backend, CacheMode())._asdict())
            self._boosters[backend] = booster
        return booster

    @property
    def boosters(self) -> Mapping[str, Booster]:
        return self._boosters

    def residents(self, documents: Sequence[DocumentLike], *, prompt_prefix: str = "") -> Residents:
        """Find the backends that hold a request's documents, under the lock.

        One search for any number of backends. `Booster.cached_tokens` says exactly what one of them
        holds: part of a prefix may be evicted, or about to be.

        Raises:
            InvalidDocumentError: bad input.
        """
        if self._directory is None:
            return Residents((), ())
        self._leave_directory()
        if self._settings.index.ttl_s is not None:
            for booster in self._boosters.values():
                booster.residency.expire()
        settings = self._settings.ordering
        count, has_copies = self.tokens.count_documents, not self._settings.dedup.enabled
        retrieved = Retrieved.of("", documents, prompt_prefix, count=count, has_copies=has_copies)
        elements, tokens = retrieved.elements, retrieved.tokens
        find, keep = self._directory.search, settings.num_kept()
        if not settings.enabled:
            find, keep = self._directory.search_in_order, 0
        recent = zip(tokens, self._directory.recent(elements), strict=True)
        return Residents(
            find(elements[keep:], tokens[keep:]),
            [Holders(length, members) for length, members in recent if members],
        )

    def original(self, backend: str, *, share: float = 1.0) -> Booster:
        """Return a Booster that models the backend's cache as it would be without boosting.

        Args:
            share: of the requests that it is given, and thus of the cache that it has for them.
        """
        booster = self._originals.get(backend)
        if booster is None:
            settings = Settings(
                index=self._settings.index.model_copy(update={"capacity_tokens": None}),
                ordering=OrderingSettings(enabled=False),
                dedup=DedupSettings(enabled=False),
            )
            booster = self._originals[backend] = Booster(settings, tokens=self.tokens)
        reported = self._modes.get(backend, CacheMode()).capacity_tokens
        capacity = self._settings.index.capacity_tokens or reported
        shared = None if capacity is None else max(1, int(capacity * share))
        booster.residency.follow(is_exact=False, capacity_tokens=shared)
        return booster

    def forget(self, backend: str) -> None:
        booster = self._boosters.get(backend)
        if booster is not None:
            # In this order: a thread that finds no Booster any more finds it among the forgotten.
            self._forgotten.append(booster)
            del self._boosters[backend]
        if not self.lock.locked():  # a thread may be using the index
            self._leave_directory()
        self._originals.pop(backend, None)

    def _leave_directory(self) -> None:
        while self._forgotten:
            self._forgotten.pop().index.leave_directory()

    @property
    def num_nodes(self) -> int:
        return sum(booster.index.num_nodes for booster in self._boosters.values())


class Tenants:
    """All tenants; the least recently used are evicted."""

    def __init__(self, settings: Settings, *, max_tenants: int = MAX_TENANTS) -> None:
        # The backends' numbers by name: their bits in all directories.
        self.numbers: dict[str, int] = {}
        # By name of the backend; they hold for Boosters that are made from then on.
        self.modes: dict[str, CacheMode] = {}
        # Documents that new counters estimate are counted in the background.
        self.is_counting = False
        # Lengths of documents by model; all models share one if a tokenizer is configured.
        self.counters: BoundedMap[str, TokenCounter] = BoundedMap(max_entries=_MAX_MODELS)
        self._settings = settings
        self._num_compared = 0  # requests whose orders were, or might have been
        self._compared_tokens = self._gained_tokens = 0  # of the documents of those that were
        # Their size is the number of their nodes when they were used last.
        self._max_nodes = settings.proxy.memory.nodes
        self._tenants: BoundedMap[TenantKey, Tenant] = BoundedMap(
            max_entries=max_tenants, max_size=self._max_nodes
        )
        if settings.tokens.tokenizer is not None:
            self._counter("")  # so that a missing file is said now, not to the first request

    def __len__(self) -> int:
        return len(self._tenants)

    def get(self, key: TenantKey) -> Tenant:
        """Return the tenant of a key; an unknown one is new."""
        tenant = self._tenants.peek(key)
        if tenant is None:
            tenant = Tenant(
                key,
                self._settings,
                self.modes,
                numbers=self.numbers if self._settings.num_backends > 1 else None,
                tokens=self._counter(key.model),
            )
        self._tenants.put(key, tenant, size=min(tenant.num_nodes, self._max_nodes // 2))
        return tenant

    def find(self, key: TenantKey) -> Tenant | None:
        """Return the tenant of a key, which does not count as use; None if it is unknown."""
        return self._tenants.peek(key)

    def all(self) -> Sequence[Tenant]:
        """Return all tenants, least recently used first."""
        return self._tenants.values()

    @property
    def num_nodes(self) -> int:
        return sum(tenant.num_nodes for tenant in self.all())

    def tokens_per_byte(self, model: str) -> float:
        """Return the ratio by which a model's texts are estimated, as its documents show it."""
        counter = self.counters.peek(self._counter_name(model))
        return counter.tokens_per_byte if counter is not None else DEFAULT_TOKENS_PER_BYTE

    def order_gain(
        self, context: Context | None, tenant: Tenant, backend: str, *, prompt_prefix: str
    ) -> float:
        """Return how many more tokens of a boosted request's documents are cached in its order than
        in the client's, in models of the same prefix cache; of a conversation only the first turn
        is ordered. The caller has locked the tenant.

        Of the first requests it takes all, then those whose first document is sampled by its key:
        in the client's order only requests with the same first document share a prefix, so that
        such a sample finds what all requests would. Its cache is as much smaller. Others are taken
        to gain the same share of their tokens. In shadow mode it takes all.
        """
        if context is None or context.turn > 1 or not context.retrieved:
            return 0.0
        is_all = self._settings.proxy.shadow or self._num_compared < _ALL
        self._num_compared += 1
        if not (is_all or context.retrieved[0].key.startswith(_SAMPLED)):
            tokens = sum(tenant.tokens.count_documents(context.retrieved))
            return tokens * self._gained_tokens / max(1, self._compared_tokens)
        original = tenant.original(backend, share=1 if is_all else _SAMPLE)
        with suppress(RagBoostError):  # a broken model of what was not sent harms nobody
            sent = original.record(context.retrieved, prompt_prefix=prompt_prefix)
            gain = context.predicted_cached_tokens - sent.cached_tokens
            self._compared_tokens += sum(sent.tokens)
            self._gained_tokens += gain
            return gain
        return 0.0

    def forget(self, backend: str) -> None:
        for tenant in self.all():
            tenant.forget(backend)

    def remove(self, backend: str) -> None:
        """Forget a backend that does not come back; another one may get its number."""
        self.forget(backend)
        self.modes.pop(backend, None)
        self.numbers.pop(backend, None)

    def _counter(self, model: str) -> TokenCounter:
        """Lengths depend on the text and the tokenizer alone, so that tenants may share them."""
        name = self._counter_name(model)
        counter = self.counters.get(name)
        if counter is None:
            counter = make_counter(self._settings.tokens)
            counter.is_counted = counter.is_counted or self.is_counting
            counter.all_counters = self.counters.values
            counter.max_wanted_bytes = self._settings.proxy.memory.uncounted
            self.counters.put(name, counter)
        return counter

    def _counter_name(self, model: str) -> str:
        return model if self._settings.tokens.tokenizer is None else ""


def number_of(name: str, numbers: dict[str, int]) -> int:
    """Return a name's number; a new name gets the lowest that is free."""
    number = numbers.get(name)
    if number is None:
        taken = set(numbers.values())
        number = numbers[name] = next(n for n in range(len(taken) + 1) if n not in taken)
    return number


def bounded_name(text: str) -> str:
    """Return a name that may be kept and shown: a short, printable one itself, others as a hash."""
    if len(text) <= _MAX_NAME and text.isprintable():
        return text
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
