"""The messages between the replicas of a proxy, in msgpack; what cannot be decoded is dropped."""

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Any

import msgspec

from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.proxy.upstream.backend import Load


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
