"""The messages between the replicas of a proxy, in msgpack, and the load that they report; what
cannot be decoded is dropped."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from ragboost.booster.tenants import bounded_name
from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.proxy.upstream.backend import Backend, Load

LIFETIME_S = 1.0  # of a load that is not repeated: ten lost beats
_MAX_SOURCES = 1024
_NONE = Load()


class LoadBoard:
    """The last loads of other processes, summed up in each backend's `elsewhere`."""

    def __init__(
        self,
        backends: Sequence[Backend],
        *,
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backends = {backend.key: backend for backend in backends}
        self._on_change = on_change
        self._clock = clock
        self._loads: dict[str, tuple[float, Mapping[str, Load]]] = {}  # those of known backends

    def add(self, backend: Backend) -> None:
        self._backends[backend.key] = backend

    def remove(self, backend: Backend) -> None:
        del self._backends[backend.key]
        for source, (until, loads) in self._loads.items():
            others = {key: load for key, load in loads.items() if key != backend.key}
            self._loads[source] = until, others

    def own(self) -> dict[str, Load]:
        """Return this process's loads by key of the backend, without those that are zero."""
        return {key: each.load for key, each in self._backends.items() if each.load.assigned}

    def put(self, source: str, loads: Mapping[str, Load]) -> None:
        if source not in self._loads and len(self._loads) >= _MAX_SOURCES:
            return
        now = {key: _counted(load) for key, load in loads.items() if key in self._backends}
        _, before = self._loads.get(source, (0.0, {}))
        self._loads[source] = (self._clock() + LIFETIME_S, now)
        if now != before:
            self._change(before, now)

    def expire(self) -> None:
        now = self._clock()
        silent = [source for source, (until, _) in self._loads.items() if until < now]
        for source in silent:
            _, loads = self._loads.pop(source)
            if loads:
                self._change(loads, {})

    async def open(self) -> None:
        self._expiry = asyncio.create_task(self._expire_often(), name="expiring loads")

    async def close(self) -> None:
        self._expiry.cancel()
        await asyncio.gather(self._expiry, return_exceptions=True)

    async def _expire_often(self) -> None:
        while True:
            await asyncio.sleep(LIFETIME_S / 2)
            self.expire()

    def _change(self, before: Mapping[str, Load], now: Mapping[str, Load]) -> None:
        """Put a process's loads into the sums in place of those before.

        Only its own backends are visited: with many processes and many backends, adding up all
        loads for each message would take longer than the time between two of them.
        """
        for key in before.keys() | now.keys():
            backend = self._backends[key]
            loads = backend.elsewhere, before.get(key, _NONE), now.get(key, _NONE)
            columns = zip(*map(astuple, loads), strict=True)
            backend.hear(Load(*[total - old + new for total, old, new in columns]))
        self._on_change()


def _counted(load: Load) -> Load:
    return Load(*[max(0, number) for number in astuple(load)])


class SentPrompt(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A prompt that a process has sent to a backend: what to expect in that prefix cache."""

    backend: str  # its key: processes may have given it different names
    request_id: str | None  # in cache events; None if they are not followed
    layout: PromptLayout


class LoadReport(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The requests that a process has on the backends, by their keys."""

    loads: Mapping[str, Load]


class ReplicaMessage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The load of a replica, or prompts that it has sent, in their order."""

    source: str  # name of the process
    report: LoadReport | None = None
    prompts: tuple[SentPrompt, ...] = ()


def _decode_document(_kind: type, value: Any) -> Hashable:
    """Decode a document's name in a context index, see `named_key`.

    A list or a NaN among them would break an index.
    """
    match value:
        case str():
            return value
        case [str() as name, int() as copy]:
            return name, copy
    raise ValueError("a document has no such name")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ReplicaMessage, dec_hook=_decode_document)
# RecursionError: nested too deeply.
_INVALID = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode(message: ReplicaMessage) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes) -> ReplicaMessage | None:
    try:
        return _decoder.decode(data)
    except _INVALID:
        return None


class PromptQueue:
    """A queue bounded by prompts and by their documents; the oldest are dropped."""

    def __init__(self, *, max_prompts: int, max_documents: int) -> None:
        self._max_prompts = max_prompts
        self._max_documents = max_documents
        self._prompts: deque[SentPrompt] = deque()
        self._num_documents = 0

    def __len__(self) -> int:
        return len(self._prompts)

    def add(self, prompt: SentPrompt) -> None:
        self._prompts.append(prompt)
        self._num_documents += len(prompt.layout.documents)
        while len(self) > self._max_prompts or self._num_documents > self._max_documents:
            self._pop()

    def take(self, *, max_prompts: int, max_documents: int) -> tuple[SentPrompt, ...]:
        """Remove the oldest prompts: one, whatever its size, and as many as the bounds allow."""
        taken: list[SentPrompt] = []
        rest = max_documents
        while self._prompts and len(taken) < max_prompts:
            rest -= len(self._prompts[0].layout.documents)
            if taken and rest < 0:
                break
            taken.append(self._pop())
        return tuple(taken)

    def _pop(self) -> SentPrompt:
        prompt = self._prompts.popleft()
        self._num_documents -= len(prompt.layout.documents)
        return prompt


_MAX_WAITING, _MAX_DOCUMENTS = 20_000, 500_000
_PER_PASS, _DOCUMENTS_PER_PASS = 32, 1_000  # before the event loop goes on


class MessageHandler:
    """Takes over loads at once and prompts in the background; used on one event loop."""

    def __init__(
        self,
        backends: Sequence[Backend],
        followers: Mapping[str, CacheFollower],
        board: LoadBoard,
        *,
        on_learned: Callable[[], object] = lambda: None,
    ) -> None:
        self._on_learned = on_learned  # called for each prompt
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
                        self._on_learned()
                await asyncio.sleep(0)


def _watch(key: str, follower: CacheFollower, publish: Callable[[SentPrompt], None]) -> None:
    def on_layout(request_id: str | None, layout: PromptLayout) -> None:
        publish(SentPrompt(key, request_id, layout))

    follower.on_layout.append(on_layout)


def _is_sound(prompt: SentPrompt) -> bool:
    """Return False for a prompt that no proxy has sent: anybody may publish on a Redis server."""
    names = (*prompt.layout.tenant, prompt.request_id or "")
    return all(bounded_name(name) == name for name in names) and prompt.layout.is_sound
