"""Lengths of documents in tokens, counted once per document.

Knows an estimate and the caller's own counter. Does not know engines or tokenizers.
"""

from collections.abc import Callable, Sequence
from threading import Lock

from ragboost.types import Document

_BYTES_PER_TOKEN = 4


def estimate_tokens(text: str) -> int:
    """Estimate a text's tokens: one per four bytes of UTF-8, at least 1."""
    num_bytes = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return max(1, -(-num_bytes // _BYTES_PER_TOKEN))


class TokenCounter:
    """Count the tokens of documents, with a bounded cache by document key.

    Args:
        count_tokens: tokens of a text; None: `estimate_tokens`. May be called from several threads.
        max_documents: lengths kept; the oldest go first.
    """

    def __init__(
        self, count_tokens: Callable[[str], int] | None = None, *, max_documents: int = 200_000
    ) -> None:
        self.max_documents = max_documents
        self._count = count_tokens or estimate_tokens
        self._lengths: dict[str, int] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._lengths)

    def count(self, text: str) -> int:
        """Tokens of a text, at least 1; not cached."""
        return max(1, self._count(text))

    def count_documents(self, documents: Sequence[Document]) -> list[int]:
        """Tokens of each document's title and text, at least 1 each."""
        lengths = self._lengths
        return [lengths.get(document.key) or self._count_new(document) for document in documents]

    def _count_new(self, document: Document) -> int:
        text = f"{document.title}\n{document.text}" if document.title else document.text
        length = self.count(text)  # outside the lock: a tokenizer may be slow
        with self._lock:
            while len(self._lengths) >= self.max_documents:
                del self._lengths[next(iter(self._lengths))]
            self._lengths[document.key] = length
        return length
