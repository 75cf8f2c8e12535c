"""Count tokens with the backends' own tokenizers (`POST /tokenize`), in the background.

A length counted too late for one request is used for the next.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ragboost.booster.tenants import Tenants
from ragboost.booster.tokens import TokenCounter, Wanted
from ragboost.cache_sync.discovery import EngineClient
from ragboost.cache_sync.follower import CacheFollower
from ragboost.types import encodable
from ragboost.util.jsonl import json_value

TOKENIZE_PATH = "/tokenize"
_POLL_S = 0.2
_BATCH = 8
_RETRY_S = 5.0


class BackendTokenizer:
    """Replace the estimates of all tenants by counted lengths.

    Only backends that report on their prefix cache are asked; one that refuses is not asked again.
    """

    def __init__(
        self,
        engines: Sequence[EngineClient],
        *,
        followers: Mapping[str, CacheFollower],
        tenants: Tenants,
    ) -> None:
        self._engines = engines
        self._followers = followers
        self._tenants = tenants
        self._refused: set[str] = set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            self._tenants.is_counting = self._usable_engine() is not None
            for model, counter in list(self._tenants.counters.items()):
                engine = self._usable_engine()
                counter.is_counted = engine is not None
                if engine is not None and not await self._count(engine, model, counter):
                    await asyncio.sleep(_RETRY_S)

    def _usable_engine(self) -> EngineClient | None:
        for engine in self._engines:
            follower = self._followers[engine.name]
            is_known = bool(follower.streams) or follower.capacity_tokens is not None
            if is_known and engine.is_healthy and engine.name not in self._refused:
                return engine
        return None

    async def _count(self, engine: EngineClient, model: str, counter: TokenCounter) -> bool:
        """Count all wanted texts; return False if the backend cannot be reached."""
        while wanted := counter.take_wanted(_BATCH):
            for at, document in enumerate(wanted):
                ids = await self._ids(engine, model, document)
                if ids is None:
                    counter.give_up(key for key, _ in wanted[at:])
                    return engine.name in self._refused
                counter.learn(document.key, len(ids))
        return True

    async def _ids(self, engine: EngineClient, model: str, wanted: Wanted) -> list[int] | None:
        body: dict[str, Any] = {"prompt": encodable(wanted.text), "add_special_tokens": False}
        if model:
            body["model"] = model
        answer = await engine.fetch(TOKENIZE_PATH, body=json.dumps(body).encode())
        if answer is None:
            return None
        ids = read_ids(answer)
        if ids is None:
            self._refused &= self._followers.keys()
            self._refused.add(engine.name)
        return ids


def read_ids(body: bytes) -> list[int] | None:
    answer = json_value(body)
    ids = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(ids, list) or not all(isinstance(number, int) for number in ids):
        return None
    return ids
