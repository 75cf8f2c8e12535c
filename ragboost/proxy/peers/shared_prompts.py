"""Tell replicas of the proxy which documents a prompt had, over Redis' publish/subscribe.

An engine's events name blocks and requests. Only the replica that sent a request knows its
documents, so that without this no other one could choose a backend, or an order, by them. A message
that is lost costs hits; none can put a document into a prompt.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.config import SessionSettings
from ragboost.proxy.peers.messages import SentPrompt, SentPrompts, decode_prompts, encode
from ragboost.proxy.peers.prompt_learner import PromptLearner
from ragboost.proxy.peers.redis_channel import RedisChannel
from ragboost.proxy.upstream.backends import Backend

_CHANNEL = "ragboost:prompts"
_INTERVAL_S = 0.05
_MAX_WAITING = 2_000  # the oldest are dropped: the server is slow, or away
_PER_MESSAGE = 200
_MAX_BYTES = 4 * 1024 * 1024
_MAX_SCALE = 100.0


class SharedPrompts:
    """One process's side of the exchange. Never fails, and sending never waits.

    Args:
        settings: of the Redis server.
        backends: replicas may have given them other names.
        followers: of their prefix caches, by name of the backend.
        name: of this process among all of all replicas: `GROUP/NUMBER` for a worker, whose fellows
            are told in another way.

    Raises:
        ConfigError: the URL is missing or invalid.
        MissingExtraError: the client is not installed.

    Attributes:
        learner: of the others' prompts.
    """

    def __init__(
        self,
        settings: SessionSettings,
        backends: Sequence[Backend],
        followers: Mapping[str, CacheFollower],
        *,
        name: str,
    ) -> None:
        self.learner = PromptLearner(followers)
        self._names = {each.key: each.name for each in backends}
        self._followers = followers
        self._name = name
        self._waiting: deque[SentPrompt] = deque(maxlen=_MAX_WAITING)
        self._channel = RedisChannel(
            settings,
            _CHANNEL,
            what="prompts",
            interval_s=_INTERVAL_S,
            produce=self._report,
            on_message=self._receive,
        )

    async def open(self) -> None:
        """Begin, without waiting for the server."""
        for key, name in self._names.items():
            self._followers[name].on_layout.append(partial(self._on_layout, key))
        await self.learner.open()
        await self._channel.open()

    async def close(self) -> None:
        """Stop."""
        await self._channel.close()
        await self.learner.close()

    def _on_layout(self, key: str, request_id: str | None, layout: PromptLayout) -> None:
        self._waiting.append(SentPrompt(key, request_id, layout))

    def _report(self) -> bytes | None:
        num = min(len(self._waiting), _PER_MESSAGE)
        prompts = tuple(self._waiting.popleft() for _ in range(num))
        return encode(SentPrompts(self._name, prompts)) if prompts else None

    def _receive(self, data: bytes) -> None:
        message = decode_prompts(data) if len(data) <= _MAX_BYTES else None
        if message is None or _group(message.source) == _group(self._name):
            return
        for prompt in message.prompts:
            name = self._names.get(prompt.backend)
            if name is not None and _is_sound(prompt.layout):
                self.learner.add(SentPrompt(name, prompt.request_id, prompt.layout))


def _group(name: str) -> str:
    return name.partition("/")[0]


def _is_sound(layout: PromptLayout) -> bool:
    """Return False for a layout that no proxy has made: anybody may publish on the server."""
    lengths = (*layout.tokens, *layout.frames, layout.tokens_before, layout.prompt_tokens)
    num = len(layout.documents)
    ends = num if layout.exact_ends is None else len(layout.exact_ends)
    is_complete = num == len(layout.tokens) == len(layout.frames) and ends == num
    return is_complete and num > 0 and min(lengths) >= 0 and 0 < layout.scale < _MAX_SCALE
