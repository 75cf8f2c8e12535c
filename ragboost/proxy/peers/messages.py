"""The messages between the workers of a proxy, and between its replicas, in msgpack.

Knows their fields. Does not know sockets, and trusts no sender beyond the types: what cannot be
decoded is dropped.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import msgspec

from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.proxy.upstream.backends import Load


class SentPrompt(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A prompt that a worker has sent to a backend: what to expect in that prefix cache.

    Attributes:
        backend: name of the backend.
        request_id: the request's id in cache events; None if they are not followed.
        layout: of its documents.
    """

    backend: str
    request_id: str | None
    layout: PromptLayout


class KeptHistory(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message of a conversation without a name whose rewritten form the sender keeps."""

    link: bytes


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A worker's sign of life, about ten times a second.

    Attributes:
        epoch: of the process; another one after a restart.
        port: on loopback, at which it takes requests from other workers.
        num_sent: numbered messages so far, from which a receiver sees that it lost some.
        loads: by URL and rank of the backend.
        wants: numbers of the workers from which it wants a snapshot.
    """

    epoch: str
    port: int
    num_sent: int
    loads: Mapping[str, Load]
    wants: tuple[int, ...] = ()


class SentPrompts(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Prompts that a process of a replica has sent; backends by their key.

    Attributes:
        source: name of the process.
        prompts: in order.
    """

    source: str
    prompts: tuple[SentPrompt, ...]


class SnapshotEnd(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The end of a snapshot: it holds what the numbered messages before `num_sent` said."""

    num_sent: int


Shared = SentPrompt | KeptHistory
PeerMessage = SentPrompt | KeptHistory | Beat | SnapshotEnd


def _decode_document(_kind: type, value: Any) -> Hashable:
    """Decode a document's name in a context index: its key, `(key, copy)` or `(preamble, either)`.

    Raises:
        ValueError: it is none of them; a list or a NaN among them would break an index.
    """
    match value:
        case str():
            return value
        case [str() as first, str() | int() as second]:
            return first, second
        case [str() as preamble, [str() as key, int() as copy]]:
            return preamble, (key, copy)
    raise ValueError("a document has no such name")


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[PeerMessage] = msgspec.msgpack.Decoder(
    PeerMessage, dec_hook=_decode_document
)
_prompts_decoder = msgspec.msgpack.Decoder(SentPrompts, dec_hook=_decode_document)
NO_MESSAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of a decoder whose data are none of its messages, or nested too deeply."""


def encode(message: PeerMessage | SentPrompts) -> bytes:
    """Encode a message."""
    return _encoder.encode(message)


def decode(data: bytes) -> PeerMessage | None:
    """Decode a message; None if it is none."""
    try:
        return _decoder.decode(data)
    except NO_MESSAGE:
        return None


def decode_prompts(data: bytes) -> SentPrompts | None:
    """Decode the prompts of a replica; None if they are none."""
    try:
        return _prompts_decoder.decode(data)
    except NO_MESSAGE:
        return None
