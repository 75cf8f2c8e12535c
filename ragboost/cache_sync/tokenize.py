"""Ask backends for the tokens of documents, once each and while nobody waits (`POST /tokenize`).

Knows what vLLM, SGLang and the embedded engine answer. Does not know requests: lengths that came
too late for one are there for the next.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ragboost.cache_sync.follower import CacheFollower
from ragboost.proxy.upstream.backends import Backend
from ragboost.rewriting.tenants import Tenants
from ragboost.tokens import TokenCounter, Wanted

TOKENIZE_PATH = "/tokenize"
_LOOK_S = 0.2
_BATCH = 8
_RETRY_S = 5.0


class BackendTokenizer:
    """Makes the estimates of all tenants exact.

    Only backends that tell of their prefix cache are asked: they run an engine of their own, and
    hosted APIs have no such route. One that refuses is not asked again.

    Args:
        backends: to ask, the first one that can.
        followers: by name of the backend.
        tenants: whose documents are wanted.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        *,
        followers: Mapping[str, CacheFollower],
        tenants: Tenants,
    ) -> None:
        self._backends = backends
        self._followers = followers
        self._tenants = tenants
        self._refused: set[str] = set()

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self._tenants.is_counting = self._backend() is not None
            for model, counter in list(self._tenants.counters.items()):
                backend = self._backend()
                counter.is_counted = backend is not None
                if backend is not None and not await self._count(backend, model, counter):
                    await asyncio.sleep(_RETRY_S)

    def _backend(self) -> Backend | None:
        for backend in self._backends:
            follower = self._followers[backend.name]
            is_known = bool(follower.streams) or follower.capacity_tokens is not None
            if is_known and backend.is_healthy and backend.name not in self._refused:
                return backend
        return None

    async def _count(self, backend: Backend, model: str, counter: TokenCounter) -> bool:
        """Count what is wanted; False if the backend cannot be reached."""
        while wanted := counter.take_wanted(_BATCH):
            for at, each in enumerate(wanted):
                ids = await self._ids(backend, model, each)
                if ids is None:
                    counter.give_up(key for key, _ in wanted[at:])
                    return backend.name in self._refused
                counter.learn(each.key, len(ids), ids=ids)
        return True

    async def _ids(self, backend: Backend, model: str, wanted: Wanted) -> list[int] | None:
        text = wanted.text.encode("utf-8", "replace").decode()
        body = {"prompt": text, "add_special_tokens": False, **({"model": model} if model else {})}
        answer = await backend.fetch(TOKENIZE_PATH, body=json.dumps(body).encode())
        if answer is None:
            return None
        ids = read_ids(answer)
        if ids is None:
            self._refused.add(backend.name)
        return ids


def read_ids(body: bytes) -> list[int] | None:
    """The token ids in an answer to `/tokenize`; None if it is none."""
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    ids = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(ids, list) or not all(isinstance(number, int) for number in ids):
        return None
    return ids
