"""Take over the prompts that other processes have sent: events then say what of them is cached."""

import asyncio
from collections import deque
from collections.abc import Mapping

from ragboost.cache_sync.follower import CacheFollower
from ragboost.proxy.peers.messages import SentPrompt

_MAX_WAITING = 20_000  # the oldest are dropped, which costs hits
_PER_PASS = 32  # before the event loop goes on


class PromptLearner:
    """Takes over prompts in the background; used on one event loop.

    Args:
        followers: of the prefix caches, by name of the backend; prompts of others are ignored.

    Attributes:
        learned: prompts so far.
    """

    def __init__(self, followers: Mapping[str, CacheFollower]) -> None:
        self.learned = 0
        self._followers = followers
        self._waiting: deque[SentPrompt] = deque(maxlen=_MAX_WAITING)
        self._has_more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, prompt: SentPrompt) -> None:
        """Take over a prompt soon."""
        self._waiting.append(prompt)
        self._has_more.set()

    async def open(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="learning prompts of others")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._has_more.wait()
            self._has_more.clear()
            while self._waiting:
                for _ in range(min(len(self._waiting), _PER_PASS)):
                    await self._learn(self._waiting.popleft())
                await asyncio.sleep(0)

    async def _learn(self, prompt: SentPrompt) -> None:
        follower = self._followers.get(prompt.backend)
        if follower is not None:
            await follower.learn(prompt.request_id, prompt.layout)
            self.learned += 1
