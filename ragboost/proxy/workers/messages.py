"""The messages between the processes of a proxy, in msgpack; what cannot be decoded is dropped."""

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


class KeptHistory(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message of a conversation without a name whose rewritten form the sending worker keeps."""

    link: bytes


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A worker's sign of life, about ten times a second."""

    epoch: str  # of the process; another one after a restart
    port: int  # on loopback, for requests of other workers
    num_sent: int  # numbered messages so far: a receiver sees that it lost some
    report: LoadReport
    wants: tuple[int, ...] = ()  # ids of the workers from which it wants a snapshot


class SnapshotEnd(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The end of a snapshot: it holds what the numbered messages before `num_sent` said."""

    num_sent: int


SharedMessage = SentPrompt | KeptHistory
WorkerMessage = SentPrompt | KeptHistory | Beat | SnapshotEnd


class ReplicaMessage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The load of one process of a replica, or prompts that it has sent, in their order."""

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
_worker_decoder: msgspec.msgpack.Decoder[WorkerMessage] = msgspec.msgpack.Decoder(
    WorkerMessage, dec_hook=_decode_document
)
_replica_decoder = msgspec.msgpack.Decoder(ReplicaMessage, dec_hook=_decode_document)
# RecursionError: nested too deeply.
_INVALID = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode(message: WorkerMessage | ReplicaMessage) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes) -> WorkerMessage | None:
    try:
        return _worker_decoder.decode(data)
    except _INVALID:
        return None


def decode_replica(data: bytes) -> ReplicaMessage | None:
    try:
        return _replica_decoder.decode(data)
    except _INVALID:
        return None
