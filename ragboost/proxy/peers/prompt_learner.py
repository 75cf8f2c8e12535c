"""Take over the prompts that other processes have sent: events then say what of them is cached."""

import asyncio
from collections.abc import Mapping

from ragboost.cache_sync.follower import CacheFollower
from ragboost.proxy.peers.messages import SentPrompt
from ragboost.proxy.peers.waiting_prompts import WaitingPrompts

_MAX_WAITING, _MAX_DOCUMENTS = 20_000, 500_000
_PER_PASS, _DOCUMENTS_PER_PASS = 32, 1_000  # before the event loop goes on


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
        self._waiting = WaitingPrompts(max_prompts=_MAX_WAITING, max_documents=_MAX_DOCUMENTS)
        self._has_more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, prompt: SentPrompt) -> None:
        """Take over a prompt soon."""
        self._waiting.add(prompt)
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
            while prompts := self._waiting.take(
                max_prompts=_PER_PASS, max_documents=_DOCUMENTS_PER_PASS
            ):
                for prompt in prompts:
                    await self._learn(prompt)
                await asyncio.sleep(0)

    async def _learn(self, prompt: SentPrompt) -> None:
        follower = self._followers.get(prompt.backend)
        if follower is not None:
            await follower.learn(prompt.request_id, prompt.layout)
            self.learned += 1
