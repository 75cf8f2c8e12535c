"""Cache the lengths of documents in tokens, so that no request waits for a tokenizer.

A request uses a counted length if there is one, else an estimate. Estimated documents are queued to
be counted for the next request, by `tokens.local` or `cache_sync.tokenizer`.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from threading import Event, Lock
from typing import NamedTuple

from ragboost.types import KEY_OF, Document

DEFAULT_TOKENS_PER_BYTE = 0.25  # until documents are counted
_MAX_WANTED = 4096
_MIN_RATIO_CHANGE = 0.05  # relative; smaller changes keep the estimates
_MIN_SAMPLE_TOKENS = 1024  # a ratio of fewer tokens means nothing
_RATIOS = 1 / 16, 1.0  # bounds: images in a prompt are not text


class Wanted(NamedTuple):
    key: str
    text: str


class TokenCounter:
    """A bounded cache of lengths by document key. Thread-safe.

    Without `count_tokens`, lengths are estimates until `learn` provides the true ones.
    """

    def __init__(
        self, count_tokens: Callable[[str], int] | None = None, *, max_documents: int = 200_000
    ) -> None:
        self.max_documents = max_documents
        # Of texts to count: of all counters together, beside a 64th for each.
        self.max_wanted_bytes = 64 << 20
        # Returns all counters of the process, which share the memory for texts that wait.
        self.all_counters: Callable[[], Iterable[TokenCounter]] | None = None
        self._is_counted = False  # somebody calls `take_wanted`
        self.has_wanted = Event()  # set while documents are queued to be counted
        self._count = count_tokens
        self._lengths: OrderedDict[str, int] = OrderedDict()  # exact ones
        self._estimates: OrderedDict[str, int] = OrderedDict()
        self._wanted: OrderedDict[str, str] = OrderedDict()
        self._wanted_bytes = 0
        self._sizes: dict[str, int] = {}  # bytes of the documents being counted
        self._ratio = DEFAULT_TOKENS_PER_BYTE
        self._sample_tokens = self._sample_bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._lengths) + len(self._estimates)

    @property
    def tokens_per_byte(self) -> float:
        """The ratio behind estimates."""
        return self._ratio

    @property
    def is_counted(self) -> bool:
        return self._is_counted

    @is_counted.setter
    def is_counted(self, value: bool) -> None:
        with self._lock:
            if value and not self._is_counted:
                self._estimates.clear()  # so that they are queued
            self._is_counted = value

    def count(self, text: str) -> int:
        """Count or estimate the tokens of a text, at least 1. Not cached."""
        if self._count is not None:
            return max(1, self._count(text))
        return max(1, math.ceil(num_bytes(text) * self._ratio))

    def count_documents(self, documents: Sequence[Document]) -> list[int]:
        lengths, estimates = self._lengths, self._estimates
        keys = list(map(KEY_OF, documents))
        cache = lengths if keys and keys[0] in lengths else estimates
        try:
            any(map(cache.move_to_end, keys))  # which returns nothing
            return list(map(cache.__getitem__, keys))
        except KeyError:  # some are unknown, or in the other cache
            counted = []
        unknown: dict[int, tuple[str, str]] = {}
        for at, document in enumerate(documents):
            key = document.key
            cache = lengths if key in lengths else estimates
            try:
                cache.move_to_end(key)
                counted.append(cache[key])
            except KeyError:  # unknown, or dropped by another thread
                text = f"{document.title}\n{document.text}" if document.title else document.text
                unknown[at] = key, text
                counted.append(0)
        if unknown:
            for at, length in zip(unknown, self._add(list(unknown.values())), strict=True):
                counted[at] = length
        return counted

    def count_frames(self, labels: Iterable[str]) -> list[int]:
        """Return the tokens of each label with the line breaks around it.

        Labels are digits and punctuation, so that estimates from their bytes are far too low.
        """
        frames = [f"\n\n{label}\n" for label in labels]
        lengths, estimates = self._lengths, self._estimates
        for cache in (lengths, estimates):
            if all(known := list(map(cache.get, frames))):
                return known  # type: ignore[return-value]  # without None
        cached = [lengths.get(frame) or estimates.get(frame) for frame in frames]
        return [
            self._add([(frame, frame)])[0] if length is None else length
            for frame, length in zip(frames, cached, strict=True)
        ]

    def are_exact(self, keys: Iterable[str]) -> bool:
        return all(key in self._lengths for key in keys)

    def take_wanted(self, limit: int) -> list[Wanted]:
        """Take documents to count off the queue, latest first; finish with `learn` or `give_up`."""
        with self._lock:
            taken: list[Wanted] = []
            while self._wanted and len(taken) < limit:
                key, text = self._wanted.popitem()
                self._wanted_bytes -= len(text)
                self._sizes[key] = num_bytes(text)
                taken.append(Wanted(key, text))
            if not self._wanted:
                self.has_wanted.clear()
            return taken

    def learn(self, key: str, length: int) -> None:
        with self._lock:
            self._lengths[key] = max(1, length)
            self._lengths.move_to_end(key)
            self._estimates.pop(key, None)
            self._shrink(self._lengths)
            self._update_ratio(length, self._sizes.pop(key, 0))

    def give_up(self, keys: Iterable[str]) -> None:
        """Release documents that could not be counted; their next request queues them again."""
        with self._lock:
            for key in keys:
                self._sizes.pop(key, None)
                self._estimates.pop(key, None)

    def correct(self, estimated_tokens: int, prompt_tokens: int) -> None:
        """Correct the ratio by the reported length of a prompt with estimated documents."""
        if self._count is None and not self._lengths:
            with self._lock:
                self._update_ratio(prompt_tokens, round(estimated_tokens / self._ratio))

    def _add(self, texts: Sequence[tuple[str, str]]) -> list[int]:
        """Return the lengths of texts, given with their keys, and keep them."""
        # Outside the lock: a given counter may be slow.
        counted = [self.count(text) for _, text in texts]
        cache = self._estimates if self._count is None else self._lengths
        with self._lock:
            for (key, text), length in zip(texts, counted, strict=True):
                cache[key] = length
                if self._count is None and self._is_counted and key not in self._sizes:
                    self._want(key, text)
            self._shrink(cache)
        return counted

    def _want(self, key: str, text: str) -> None:
        self._wanted[key] = text
        self._wanted_bytes += len(text)
        while len(self._wanted) > _MAX_WANTED or self._has_too_many_bytes():
            dropped, lost = self._wanted.popitem(last=False)
            self._wanted_bytes -= len(lost)
            self._estimates.pop(dropped, None)  # so that it is queued again
        self.has_wanted.set()

    def _has_too_many_bytes(self) -> bool:
        if self._wanted_bytes <= self.max_wanted_bytes // 64:
            return False
        counters = [self] if self.all_counters is None else self.all_counters()
        return sum(each._wanted_bytes for each in counters) > self.max_wanted_bytes

    def _update_ratio(self, tokens: int, size: int) -> None:
        if self._sample_bytes > 1 << 20:
            self._sample_tokens //= 2
            self._sample_bytes //= 2
        self._sample_tokens += tokens
        self._sample_bytes += size
        if self._sample_tokens >= _MIN_SAMPLE_TOKENS and self._sample_bytes:
            least, most = _RATIOS
            ratio = min(max(self._sample_tokens / self._sample_bytes, least), most)
            if abs(ratio - self._ratio) > _MIN_RATIO_CHANGE * self._ratio:
                self._ratio = ratio
                self._estimates.clear()

    def _shrink(self, cache: "OrderedDict[str, int]") -> None:
        while len(cache) > self.max_documents:
            cache.popitem(last=False)


def num_bytes(text: str) -> int:
    """Return the bytes of a text in UTF-8; lone surrogates count as three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
