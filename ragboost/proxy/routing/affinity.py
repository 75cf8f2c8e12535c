"""Which message prefixes a backend was sent lately: where a conversation's history lives.

Knows hashes of the client's original messages and lengths of what was sent for them. Does not know
documents: the context index does.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Raw

from ragboost.rewriting.conversations import Link, chain


class MessagePrefix(NamedTuple):
    """The messages up to one of them, and their length in tokens as the client gave them."""

    link: Link
    num_tokens: int


class PrefixAffinity:
    """The prefixes of each backend by last use, bounded."""

    def __init__(self, *, max_prefixes: int) -> None:
        self._max_prefixes = max_prefixes
        self._sent: dict[str, OrderedDict[Link, int]] = {}

    def longest(self, backend: str, prefixes: Sequence[MessagePrefix]) -> tuple[int, int]:
        """Find the longest prefix that the backend was sent.

        Returns:
            Its tokens as they were sent, and as the client gave them; 0, 0 if there is none.
        """
        sent = self._sent.get(backend)
        for prefix in reversed(prefixes) if sent else ():
            if sent and prefix.link in sent:
                return sent[prefix.link], prefix.num_tokens
        return 0, 0

    def tokens(self, backend: str, link: Link) -> int:
        """The tokens of one prefix as the backend was sent it; 0: it was not."""
        sent = self._sent.get(backend)
        return sent.get(link, 0) if sent else 0

    def remember(self, backend: str, prefixes: Sequence[MessagePrefix], *, num_tokens: int) -> None:
        """Note that the backend is sent these prefixes, the last one with `num_tokens`.

        What the earlier ones were sent with is kept where it is known.
        """
        if not prefixes:
            return
        sent = self._sent.setdefault(backend, OrderedDict())
        for prefix in prefixes[:-1]:
            sent.setdefault(prefix.link, prefix.num_tokens)
            sent.move_to_end(prefix.link)
        sent[prefixes[-1].link] = num_tokens
        sent.move_to_end(prefixes[-1].link)
        while len(sent) > self._max_prefixes:
            sent.popitem(last=False)

    def forget(self, backend: str) -> None:
        """The backend's prefix cache is lost."""
        self._sent.pop(backend, None)


def prefixes_of(
    messages: Sequence[Raw], *, seed: bytes, bytes_per_token: int = 4
) -> tuple[MessagePrefix, ...]:
    """The prefixes of a list of messages.

    Args:
        messages: as the client's bytes.
        seed: everything that stands before them in the prompt, or keeps caches apart.
        bytes_per_token: for the estimate of lengths.
    """
    links = chain(messages, seed=seed)
    prefixes, num_bytes = [], 0
    for message, link in zip(messages, links, strict=True):
        num_bytes += memoryview(message).nbytes
        prefixes.append(MessagePrefix(link, num_bytes // bytes_per_token))
    return tuple(prefixes)
