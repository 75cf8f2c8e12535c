"""From tokens to documents: how many leading documents of a request an engine holds.

The bridge between a mirror (request ids, tokens) and the context index (documents). Knows neither
blocks nor the index; a document is a hashable key with an end, in tokens of the prompt.
"""

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ragboost.cache_sync.prefix_mirror import Changes


class ResidentContext(NamedTuple):
    """What is cached now of the documents of one request.

    Attributes:
        request_id: the request.
        documents: all its documents, in prompt order.
        num_resident: leading documents that are cached to the last block that lies in them whole.
        resident_tokens: tokens of documents that are cached, the cut one's too.
    """

    request_id: str
    documents: tuple[Hashable, ...]
    num_resident: int
    resident_tokens: int


def document_ends(
    tokens: Sequence[float], *, tokens_before: int = 0, scale: float = 1.0
) -> tuple[int, ...]:
    """Ends of documents in the prompt, from their lengths.

    Args:
        tokens: lengths in prompt order, with the frame around each document.
        tokens_before: of the prompt, in front of the first document.
        scale: true tokens per counted token, where the lengths are estimates; for example the
            prompt tokens that a backend reported, divided by those estimated.
    """
    ends, end = [], float(tokens_before)
    for length in tokens:
        end += length * scale
        ends.append(round(end))
    return tuple(ends)


def locate_documents(
    prompt: Sequence[int], documents: Sequence[Sequence[int]], *, margin: int = 2
) -> tuple[int, ...]:
    """Ends of documents in the prompt, from the token ids that the engine used.

    Tokens at the border of a document may merge with their neighbours, so `margin` tokens at both
    ends are not compared. The search stops at the first document that is not found, and the rest is
    left out: what follows it cannot be placed.

    Args:
        prompt: token ids of the whole prompt.
        documents: token ids of each document's text alone, in prompt order.
        margin: tokens left out at both ends of a document.
    """
    raw, ends, at = array("q", prompt).tobytes(), [], 0
    for ids in documents:
        core = ids[margin : len(ids) - margin] if len(ids) > 2 * margin else ids
        start = _find(raw, array("q", core).tobytes(), at * 8)
        if start is None:
            break
        skipped = margin if len(ids) > 2 * margin else 0
        at = start + len(core)
        ends.append(min(at + skipped, len(prompt)))
    return tuple(ends)


def _find(raw: bytes, part: bytes, start: int) -> int | None:
    """Position of a run of token ids, in tokens."""
    at = raw.find(part, start)
    while at >= 0 and at % 8:
        at = raw.find(part, at + 1)
    return at // 8 if at >= 0 else None


class DocumentTracker:
    """Remembers where the documents of recent requests end, and reads `Changes` as documents.

    The block in which a document ends is shared with what follows it, so that another request may
    hold it with other tokens. A document counts as cached without that block: what is lost of it is
    less than a block, and an engine reuses whole blocks only.

    Args:
        max_requests: requests remembered; the oldest go first.
    """

    def __init__(self, *, max_requests: int = 100_000) -> None:
        self.max_requests = max_requests
        self._sent: OrderedDict[str, _Sent] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sent)

    def sent(
        self,
        request_id: str,
        documents: Sequence[Hashable],
        *,
        ends: Sequence[int],
        tokens_before: int = 0,
    ) -> None:
        """Remember a request when it is sent on.

        Args:
            request_id: what the backend will name in `session_id`.
            documents: keys in prompt order.
            ends: see `document_ends` and `locate_documents`; documents without an end are left out.
            tokens_before: of the prompt, in front of the first document.
        """
        count = min(len(documents), len(ends))
        self._sent[request_id] = _Sent(tuple(documents[:count]), tuple(ends[:count]), tokens_before)
        if len(self._sent) > self.max_requests:
            self._sent.popitem(last=False)

    def read(self, changes: Changes, *, block_size: int) -> list[ResidentContext]:
        """Say what is cached now of each request that changed; look at `is_cleared` first.

        Args:
            changes: from a mirror.
            block_size: the mirror's.
        """
        contexts = []
        for request_id, tokens in changes.resident_tokens.items():
            context = self.resident(request_id, tokens, block_size=block_size)
            if context is not None:
                contexts.append(context)
            if not tokens:
                self._sent.pop(request_id, None)
        return contexts

    def resident(
        self, request_id: str, resident_tokens: int, *, block_size: int
    ) -> ResidentContext | None:
        """What is cached of one request; None for an unknown one."""
        sent = self._sent.get(request_id)
        if sent is None:
            return None
        count = bisect_left(sent.ends, resident_tokens + block_size) if resident_tokens else 0
        end = max(resident_tokens, sent.ends[count - 1] if count else 0)
        last = sent.ends[-1] if sent.ends else sent.tokens_before
        return ResidentContext(
            request_id, sent.documents, count, max(0, min(end, last) - sent.tokens_before)
        )


class _Sent(NamedTuple):
    documents: tuple[Hashable, ...]
    ends: tuple[int, ...]
    tokens_before: int
