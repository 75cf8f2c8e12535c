"""Apply what other processes of the proxy say; knows no transport.

Only the process that sent a request knows the documents behind an engine's events. A message that
is lost costs hits; none can put a document into a prompt.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from ragboost.booster.tenants import bounded_name
from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.proxy.replicas.load_board import LoadBoard
from ragboost.proxy.replicas.messages import LoadReport, PromptQueue, SentPrompt
from ragboost.proxy.upstream.backend import Backend

_MAX_WAITING, _MAX_DOCUMENTS = 20_000, 500_000
_PER_PASS, _DOCUMENTS_PER_PASS = 32, 1_000  # before the event loop goes on


class MessageHandler:
    """Takes over loads at once and prompts in the background; used on one event loop."""

    def __init__(
        self,
        backends: Sequence[Backend],
        followers: Mapping[str, CacheFollower],
        board: LoadBoard,
    ) -> None:
        self.learned = 0  # prompts
        self._all_followers = followers
        self._followers: dict[str, CacheFollower] = {}  # by key of the backend
        self._watchers: list[Callable[[SentPrompt], None]] = []
        for backend in backends:
            self.add(backend)
        self._board = board
        self._waiting = PromptQueue(max_prompts=_MAX_WAITING, max_documents=_MAX_DOCUMENTS)
        self._has_more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._task = asyncio.create_task(self._run(), name="learning prompts of others")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def add(self, backend: Backend) -> None:
        """Take over what is said of one more backend, once `followers` has it."""
        follower = self._all_followers.get(backend.name)
        if follower is not None:
            self._followers[backend.key] = follower
            for publish in self._watchers:
                _watch(backend.key, follower, publish)

    def remove(self, backend: Backend) -> None:
        self._followers.pop(backend.key, None)

    def report(self) -> LoadReport:
        return LoadReport(self._board.own())

    def watch(self, publish: Callable[[SentPrompt], None]) -> None:
        self._watchers.append(publish)
        for key, follower in self._followers.items():
            _watch(key, follower, publish)

    def apply(self, source: str, message: SentPrompt | LoadReport) -> None:
        """Take over a message, which may arrive twice, of the process with the name `source`."""
        match message:
            case SentPrompt():
                if message.backend in self._followers and _is_sound(message):
                    self._waiting.add(message)
                    self._has_more.set()
            case LoadReport():
                self._board.put(source, message.loads)

    async def _run(self) -> None:
        while True:
            await self._has_more.wait()
            self._has_more.clear()
            while prompts := self._waiting.take(
                max_prompts=_PER_PASS, max_documents=_DOCUMENTS_PER_PASS
            ):
                for prompt in prompts:
                    if (follower := self._followers.get(prompt.backend)) is not None:
                        await follower.learn(prompt.request_id, prompt.layout)
                        self.learned += 1
                await asyncio.sleep(0)


def _watch(key: str, follower: CacheFollower, publish: Callable[[SentPrompt], None]) -> None:
    def on_layout(request_id: str | None, layout: PromptLayout) -> None:
        publish(SentPrompt(key, request_id, layout))

    follower.on_layout.append(on_layout)


def _is_sound(prompt: SentPrompt) -> bool:
    """Return False for a prompt that no proxy has sent: anybody may publish on a Redis server."""
    names = (*prompt.layout.tenant, prompt.request_id or "")
    return all(bounded_name(name) == name for name in names) and prompt.layout.is_sound
