"""Tell a backend that reuses chunks where the documents of a request stand.

Only the embedded engine understands that: it says so at `/chunk_reuse`. With several backends all
of them must, since a request may move from one to another. Knows bodies as they are sent, and
contexts. Does not know what the engine does with it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ragboost.config import BackendSettings
from ragboost.context import Context, render_document
from ragboost.formats.ragboost_object import FIELD, GRAPH
from ragboost.proxy.upstream.backends import Backend

_RETRY_S = 2.0
_RECHECK_S = 30.0


class ChunkPositions:
    """See the module. `open` and `close` belong to the event loop.

    Args:
        settings: `reuse_chunks` says yes or no for all backends, or to ask them.
        backends: all of them.
    """

    def __init__(self, settings: BackendSettings, backends: Sequence[Backend]) -> None:
        self._wanted = settings.reuse_chunks
        self._backends = backends
        self._reusing: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Begin to ask; nothing waits for a backend."""
        if self._wanted is None:
            self._tasks = [asyncio.create_task(self._watch(each)) for each in self._backends]

    async def close(self) -> None:
        """Stop asking."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def is_told(self) -> bool:
        """Whether documents are told of."""
        if self._wanted is not None:
            return self._wanted
        return all(backend.name in self._reusing for backend in self._backends)

    def add(
        self, body: Mapping[str, Any], context: Context | None, *, message: int | None, asked: Any
    ) -> Mapping[str, Any]:
        """Return the body with the places of its documents, or as it is where they are not told.

        Args:
            body: as it will be sent.
            context: its documents; None: nothing is known of any.
            message: the message that they stand in; None: the prompt.
            asked: what the client's `ragboost.reuse` says; None: nothing.
        """
        kept = body.get(FIELD)
        if not self.is_told or (isinstance(kept, dict) and GRAPH in kept):
            return body  # a prompt with a graph is computed in its own way
        chunks = find_chunks(body, context, message=message) if context is not None else []
        ours = {"reuse": asked} if asked is not None else {}
        if chunks:
            ours["chunks"] = chunks
        return {**body, FIELD: ours} if ours else body

    async def _watch(self, backend: Backend) -> None:
        while True:
            answer = await backend.fetch("/chunk_reuse")
            is_reusing = bool(answer) and _says_so(answer or b"")
            (self._reusing.add if is_reusing else self._reusing.discard)(backend.name)
            await asyncio.sleep(_RETRY_S if answer is None else _RECHECK_S)


def find_chunks(
    body: Mapping[str, Any], context: Context, *, message: int | None
) -> list[list[int]]:
    """Return the place of each document that stands in the body as we would write it, or with its
    text: `[message, start, stop]`, or `[start, stop]` in a prompt, in characters."""
    text = _text(body, message)
    head = [] if message is None else [message]
    chunks, cursor = [], 0
    for document, label in zip(context.documents, context.labels, strict=True):
        for written in (render_document(document, label=label), document.text):
            at = text.find(written, cursor)
            if at >= 0:
                cursor = at + len(written)
                chunks.append([*head, at, cursor])
                break
    return chunks


def _text(body: Mapping[str, Any], message: int | None) -> str:
    """The text of a message, its parts joined as the engine joins them; or the prompt."""
    if message is None:
        prompt = body.get("prompt")
        return prompt if isinstance(prompt, str) else ""
    value = body["messages"][message]
    if isinstance(value, msgspec.Raw):
        value = msgspec.json.decode(value)
    content = value.get("content")
    if isinstance(content, str):
        return content
    parts = [part.get("text") if isinstance(part, dict) else part for part in content or ()]
    texts = [part for part in parts if isinstance(part, str)]
    return "\n".join(texts) if len(texts) == len(parts) else ""


def _says_so(answer: bytes) -> bool:
    try:
        return msgspec.json.decode(answer)["is_possible"] is True
    except (msgspec.DecodeError, TypeError, KeyError):
        return False  # somebody else's answer
