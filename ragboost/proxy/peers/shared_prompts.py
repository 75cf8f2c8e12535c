"""Tell replicas of the proxy which documents a prompt had, over Redis' publish/subscribe.

An engine's events name blocks and requests. Only the replica that sent a request knows its
documents, so that without this no other one could choose a backend, or an order, by them. One that
starts hears what was told lately. A message that is lost costs hits; none can put a document into a
prompt.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from ragboost.booster.tenants import bounded_name
from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.config import SessionSettings
from ragboost.proxy.peers.messages import SentPrompt, SentPrompts, decode_prompts, encode
from ragboost.proxy.peers.prompt_learner import PromptLearner
from ragboost.proxy.peers.redis_channel import RedisChannel
from ragboost.proxy.peers.waiting_prompts import WaitingPrompts
from ragboost.proxy.upstream.backends import Backend

_CHANNEL = "ragboost:prompts"
_INTERVAL_S = 0.05
_MAX_WAITING, _MAX_DOCUMENTS = 2_000, 200_000  # the server is slow, or away
# Decoding a message takes a few milliseconds; a single prompt may have more documents.
_PER_MESSAGE, _DOCUMENTS_PER_MESSAGE = 200, 600
_MESSAGES_PER_INTERVAL = 5
_MAX_BYTES = 1024 * 1024
_NUM_KEPT = 500  # messages, for replicas that start: at most 32 MB on the server


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
        self._waiting = WaitingPrompts(max_prompts=_MAX_WAITING, max_documents=_MAX_DOCUMENTS)
        self._channel = RedisChannel(
            settings,
            _CHANNEL,
            what="prompts",
            interval_s=_INTERVAL_S,
            produce=self._report,
            on_message=self._receive,
            num_kept=_NUM_KEPT,
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
        self._waiting.add(SentPrompt(key, request_id, layout))

    def _report(self) -> Sequence[bytes]:
        bounds = {"max_prompts": _PER_MESSAGE, "max_documents": _DOCUMENTS_PER_MESSAGE}
        taken = [self._waiting.take(**bounds) for _ in range(_MESSAGES_PER_INTERVAL)]
        return [encode(SentPrompts(self._name, prompts)) for prompts in taken if prompts]

    def _receive(self, data: bytes) -> None:
        message = decode_prompts(data) if len(data) <= _MAX_BYTES else None
        if message is None or _group(message.source) == _group(self._name):
            return
        for prompt in message.prompts:
            name = self._names.get(prompt.backend)
            if name is not None and _is_sound(prompt):
                self.learner.add(SentPrompt(name, prompt.request_id, prompt.layout))


def _group(name: str) -> str:
    return name.partition("/")[0]


def _is_sound(prompt: SentPrompt) -> bool:
    """Return False for a prompt that no proxy has sent: anybody may publish on the server."""
    layout, names = prompt.layout, (*prompt.layout.tenant, prompt.request_id or "")
    if any(bounded_name(name) != name for name in names):
        return False
    return layout.is_sound
