"""Locate the documents at the front of a request in its prompt, in the engine's tokens.

Lengths are counted or estimated, and corrected by what responses report.
"""

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ragboost.booster.context import Context
from ragboost.booster.tenants import TenantKey
from ragboost.booster.tokens import TokenCounter

# A cached prefix that ends this close to a document's end is taken to end there: dropping what
# follows it in the index would cost more than a few tokens too many.
_SLACK_COUNTED = 8
_SLACK_ESTIMATED = 16
_SLACK_SHARE = 0.01
_SCALES = 0.25, 4.0
_MAX_LENGTH = 10**9  # tokens of anything
# Tokens of a prompt beyond its estimate, such as tools, are before the messages. Fewer than this
# are an error of the estimates on both sides of the documents.
_MIN_UNKNOWN_TOKENS = 48
_UNKNOWN_SHARE = 0.25  # of the estimated text behind the documents
_MIN_PARTIAL_TOKENS = 16
_BREAKS_PER_FRAME = 2  # tokens of the line breaks around a label
_TEMPLATE_TOKENS = 8  # of a chat template, around one message


class ResidentDocuments(NamedTuple):
    num_documents: int  # leading documents that are cached, up to the last block that they fill
    partial_tokens: int = 0  # cached tokens of the next document, in the index's tokens


class PromptLayout(NamedTuple):
    """The documents at the front of a request, as the context index holds them."""

    tenant: TenantKey  # the owner of the context index
    documents: tuple[Hashable, ...]
    tokens: tuple[int, ...]  # their lengths in the index
    frames: tuple[int, ...]  # tokens around each of them
    tokens_before: int  # estimated tokens before the first document
    prompt_tokens: int  # estimated length of the whole prompt
    is_measured: bool = False  # `tokens` were counted, not estimated
    prompt_prefix: str = ""  # identifies the text before the documents
    scale: float = 1.0  # the engine's tokens per estimated token; 1 if the lengths were counted
    unknown_tokens: int = 0  # tokens before the documents in addition to `tokens_before`
    num_exact: int | None = None  # leading documents that are not reused; None: all, see IndexEntry

    @classmethod
    def of(
        cls,
        context: Context,
        tenant: TenantKey,
        *,
        prompt_prefix: str,
        bytes_before: int,
        bytes_behind: int,
        is_measured: bool,
        counter: TokenCounter,
    ) -> "PromptLayout":
        """Estimate a boosted request's layout; `bytes_behind` leaves out question and hints."""
        entry = context.index_entry
        assert entry is not None, "a later turn has no documents at the front"
        per_byte = counter.tokens_per_byte
        frames = tuple(counter.count_frames(context.labels))
        behind = (len(context.query) + bytes_behind) * per_byte
        if context.hints and frames:
            behind += _hint_tokens(context, frames, per_byte)
        before = round(bytes_before * per_byte) + _TEMPLATE_TOKENS
        return cls(
            tenant,
            entry.documents,
            entry.tokens,
            frames=frames,
            tokens_before=before,
            prompt_tokens=before + sum(entry.tokens) + sum(frames) + round(behind),
            is_measured=is_measured,
            prompt_prefix=prompt_prefix,
            num_exact=entry.num_exact,
        )

    @property
    def is_sound(self) -> bool:
        """A context index can hold the documents, and the lengths are possible."""
        num = len(self.documents)
        parts = self.tokens, self.frames, set(self.documents)
        if not num or any(len(part) != num for part in parts):
            return False
        least, most = _SCALES
        lengths = *self.frames, self.tokens_before, self.prompt_tokens, self.unknown_tokens
        lengths = *lengths, self.num_exact or 0
        is_possible = min(lengths) >= 0 and max(*lengths, *self.tokens) <= _MAX_LENGTH
        return is_possible and min(self.tokens) > 0 and least <= self.scale <= most

    @property
    def start(self) -> int:
        """Start of the first document's frame."""
        return round(self.tokens_before * self.scale) + self.unknown_tokens

    @property
    def ends(self) -> tuple[int, ...]:
        ends, end, scale = [], float(self.start), self.scale
        for length, frame in zip(self.tokens, self.frames, strict=True):
            end += (length + frame) * scale
            ends.append(round(end))
        return tuple(ends)

    @property
    def total(self) -> int:
        return round(self.prompt_tokens * self.scale) + self.unknown_tokens

    def slack(self, tokens: int) -> int:
        """Return how close a prefix of `tokens` must end to a document's end to count as that."""
        if self.is_measured:
            return _SLACK_COUNTED
        return _SLACK_ESTIMATED + round(_SLACK_SHARE * tokens)

    def corrected(self, prompt_tokens: int) -> "PromptLayout":
        if self.is_measured:
            behind = self.prompt_tokens - self.tokens_before - sum(self.tokens) - sum(self.frames)
            unknown = prompt_tokens - self.prompt_tokens
            is_error = unknown <= _MIN_UNKNOWN_TOKENS + _UNKNOWN_SHARE * behind
            return self._replace(unknown_tokens=0 if is_error else unknown)
        least, most = _SCALES
        scale = prompt_tokens / max(self.prompt_tokens, 1)
        return self._replace(scale=min(max(scale, least), most))

    def cached_prompt(self, cached_tokens: int) -> int:
        """Convert cached tokens of the documents, as in the index, into a prompt prefix."""
        if not cached_tokens:
            return 0
        frames, rest = 0, cached_tokens
        for length, frame in zip(self.tokens, self.frames, strict=True):
            if rest <= 0:
                break
            frames, rest = frames + frame, rest - length
        estimated = self.tokens_before + frames + cached_tokens
        return round(estimated * self.scale) + self.unknown_tokens

    def cached_documents(self, cached_tokens: int) -> int:
        """Convert a prompt prefix into tokens of the documents, as the index counts."""
        found, begin = 0, self.start
        for length, frame, end in zip(self.tokens, self.frames, self.ends, strict=True):
            if cached_tokens >= end:
                found, begin = found + length, end
                continue
            inside = int((cached_tokens - begin) / self.scale) - frame
            return found + max(0, min(length, inside))
        return found

    def resident(self, cached_tokens: int, *, block_size: int) -> ResidentDocuments:
        """Return the documents within a cached prompt prefix.

        A document counts without the block in which it ends, which also holds what follows it: the
        error is less than a block, and engines reuse whole blocks only.
        """
        if not cached_tokens:
            return ResidentDocuments(0)
        ends = self.ends
        count = bisect_left(ends, cached_tokens + block_size + self.slack(cached_tokens))
        if count == len(ends):
            return ResidentDocuments(count)
        end = max(cached_tokens, ends[count - 1] if count else 0)
        partial = self.cached_documents(end) - sum(self.tokens[:count])
        return ResidentDocuments(count, partial if partial > _MIN_PARTIAL_TOKENS else 0)


def _hint_tokens(context: Context, frames: Sequence[int], per_byte: float) -> float:
    """Estimate the hints: labels as long as those of the documents, and the text between them."""
    labels, hints = context.labels, context.hints
    num_labels = sum([len(hint.labels) for hint in hints])
    num_bytes = sum([len(hint.text) for hint in hints])
    label_bytes = sum([len(label) for label in labels]) / len(labels)
    label_tokens = sum(frames) / len(frames) - _BREAKS_PER_FRAME
    return num_labels * label_tokens + (num_bytes - num_labels * label_bytes) * per_byte
