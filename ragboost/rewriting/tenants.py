"""Who is kept apart from whom: one tenant per model and cache salt, one user per credential.

Each backend has a prefix cache of its own, so that a tenant has a Booster per backend; what its
conversations were sent is the same for all of them.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ragboost.booster import Booster, MemorySessions
from ragboost.config import DedupSettings, OrderingSettings, Settings
from ragboost.index import EvictionForecast
from ragboost.rewriting.headers import RawHeaders
from ragboost.tokens import TokenCounter, make_counter

_MAX_MODELS = 64


class TenantKey(NamedTuple):
    """What selects a prefix cache in the engine: others neither hit nor influence it."""

    model: str
    cache_salt: str

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "TenantKey":
        """The key of a request; fields that are no strings count as absent."""
        model, salt = body.get("model"), body.get("cache_salt")
        return cls(model if isinstance(model, str) else "", salt if isinstance(salt, str) else "")


class CacheMode(NamedTuple):
    """What is known of one backend's prefix cache.

    Attributes:
        is_exact: its events say what it holds.
        capacity_tokens: its size, where the backend says it.
        pressure: what its requests in flight will evict; None: not followed.
    """

    is_exact: bool = False
    capacity_tokens: int | None = None
    pressure: EvictionForecast | None = None


class Tenant:
    """A Booster per backend and the lock under which they are used, so that the event loop never
    waits for a worker thread that is boosting a large request.

    Attributes:
        tokens: lengths of documents, for all its Boosters.
    """

    def __init__(
        self,
        key: TenantKey,
        settings: Settings,
        modes: Mapping[str, CacheMode] | None = None,
        *,
        tokens: TokenCounter | None = None,
    ) -> None:
        self.key = key
        self.tokens = make_counter(settings.tokens) if tokens is None else tokens
        self._modes = {} if modes is None else modes
        self.lock = asyncio.Lock()
        self._settings = settings
        self._sessions = MemorySessions(
            max_sessions=settings.session.max_sessions, ttl_s=settings.session.ttl_s
        )
        self._boosters: dict[str, Booster] = {}
        self._originals: dict[str, Booster] = {}

    def booster(self, backend: str) -> Booster:
        """The Booster that mirrors the prefix cache of the backend of this name."""
        booster = self._boosters.get(backend)
        if booster is None:
            booster = Booster(self._settings, tokens=self.tokens, sessions=self._sessions)
            mode = self._modes.get(backend, CacheMode())
            booster.residency.follow(
                is_exact=mode.is_exact,
                capacity_tokens=mode.capacity_tokens,
                eviction_forecast=mode.pressure,
            )
            self._boosters[backend] = booster
        return booster

    @property
    def boosters(self) -> Mapping[str, Booster]:
        """The Boosters that are in use, by name of the backend."""
        return self._boosters

    def original(self, backend: str) -> Booster:
        """A Booster that mirrors what the backend's cache would hold without boosting."""
        booster = self._originals.get(backend)
        if booster is None:
            settings = Settings(
                index=self._settings.index,
                ordering=OrderingSettings(enabled=False),
                dedup=DedupSettings(enabled=False),
            )
            booster = self._originals[backend] = Booster(settings, tokens=self.tokens)
        return booster

    def forget(self, backend: str) -> None:
        """The backend's prefix cache is lost: start its mirror anew. Conversations stay."""
        self._boosters.pop(backend, None)
        self._originals.pop(backend, None)

    @property
    def num_nodes(self) -> int:
        """Nodes of its context indexes."""
        return sum(booster.index.num_nodes for booster in self._boosters.values())


class Tenants:
    """The tenants by last use, bounded.

    Attributes:
        modes: by name of the backend; holds for Boosters that are made from then on.
        counters: lengths of documents by model; all models have one where a tokenizer is given.
        is_counting: somebody counts what new counters want.
    """

    def __init__(self, settings: Settings) -> None:
        self.modes: dict[str, CacheMode] = {}
        self.is_counting = False
        self.counters: OrderedDict[str, TokenCounter] = OrderedDict()
        self._settings = settings
        self._tenants: OrderedDict[TenantKey, Tenant] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tenants)

    def get(self, key: TenantKey) -> Tenant:
        """The tenant of this key, new if it is unknown; the least recently used one goes for it."""
        tenant = self._tenants.get(key)
        if tenant is None:
            counter = self._counter(key.model)
            tenant = Tenant(key, self._settings, self.modes, tokens=counter)
            self._tenants[key] = tenant
            if len(self._tenants) > self._settings.proxy.max_tenants:
                self._tenants.popitem(last=False)
        self._tenants.move_to_end(key)
        return tenant

    def _counter(self, model: str) -> TokenCounter:
        """Lengths depend on the text and the tokenizer only, so that tenants may share them."""
        if self._settings.tokens.tokenizer is not None:
            model = ""
        counter = self.counters.get(model)
        if counter is None:
            counter = self.counters[model] = make_counter(self._settings.tokens)
            counter.is_counted = counter.is_counted or self.is_counting
            if len(self.counters) > _MAX_MODELS:
                self.counters.popitem(last=False)
        self.counters.move_to_end(model)
        return counter

    def find(self, key: TenantKey) -> Tenant | None:
        """The tenant of this key; None if it is unknown. Does not count as use."""
        return self._tenants.get(key)

    def all(self) -> Sequence[Tenant]:
        """All tenants, least recently used first."""
        return list(self._tenants.values())

    @property
    def num_nodes(self) -> int:
        """Nodes of all context indexes."""
        return sum(tenant.num_nodes for tenant in self._tenants.values())

    def forget(self, backend: str) -> None:
        """The prefix cache of the backend of this name is lost."""
        for tenant in self._tenants.values():
            tenant.forget(backend)


def user_of(headers: RawHeaders) -> str:
    """Name the user behind a request by the credentials that it carries, without keeping them."""
    digest = hashlib.sha256()
    for name, value in headers:
        if name in (b"authorization", b"x-api-key"):
            digest.update(b"%s %d " % (name, len(value)))
            digest.update(value)
    return digest.hexdigest()[:32]
