"""Where the documents at the front of a request stand in its prompt, in the engine's tokens.

Knows lengths, counted or estimated, and corrects them by the prompts that answers report. Does not
know engines, events or the context index.
"""

from collections.abc import Hashable
from typing import NamedTuple

from ragboost.cache_sync.documents import document_ends
from ragboost.rewriting.tenants import TenantKey

# A cached prefix that ends this close to a document's end ends there: taking back what goes on
# behind would be worse than a few tokens too many.
_SLACK_MEASURED = 8
_SLACK_ESTIMATED = 16
_SLACK_SHARE = 0.01
_SCALES = 0.25, 4.0
# What a prompt has beyond what we know of it, such as tools, stands before the messages. Less than
# this is an error of the estimates on both sides of the documents.
_MIN_UNKNOWN_TOKENS = 48
_UNKNOWN_SHARE = 0.25  # of the estimated text behind the documents


class PromptLayout(NamedTuple):
    """The documents at the front of a request, as the context index knows them.

    Attributes:
        tenant: whose index holds them.
        documents: in prompt order.
        tokens: their lengths in the index.
        frames: estimated tokens around each of them.
        tokens_before: estimated tokens of the prompt in front of them.
        prompt_tokens: estimated length of the whole prompt.
        is_measured: `tokens` were counted, not estimated.
        scale: the engine's tokens per estimated token, where they were not.
        unknown_tokens: of the prompt in front of the documents, beside `tokens_before`.
        preamble: names the text in front of the documents.
        ends_told: where the documents end, if the engine's own token ids say so.
    """

    tenant: TenantKey
    documents: tuple[Hashable, ...]
    tokens: tuple[int, ...]
    frames: tuple[int, ...]
    tokens_before: int
    prompt_tokens: int
    is_measured: bool = False
    scale: float = 1.0
    unknown_tokens: int = 0
    preamble: str = ""
    ends_told: tuple[int, ...] | None = None

    @property
    def start(self) -> int:
        """Where the first document's frame begins."""
        return round(self.tokens_before * self.scale) + self.unknown_tokens

    @property
    def ends(self) -> tuple[int, ...]:
        """Where the documents end in the prompt."""
        if self.ends_told is not None:
            return self.ends_told
        lengths = [a + b for a, b in zip(self.tokens, self.frames, strict=True)]
        return document_ends(lengths, tokens_before=self.start, scale=self.scale)

    @property
    def total(self) -> int:
        """Length of the whole prompt."""
        return round(self.prompt_tokens * self.scale) + self.unknown_tokens

    def slack(self, tokens: int) -> int:
        """How far a cached prefix of so many tokens may end from a document's end and mean it."""
        if self.ends_told is not None:
            return 0
        if self.is_measured:
            return _SLACK_MEASURED
        return _SLACK_ESTIMATED + round(_SLACK_SHARE * tokens)

    def corrected(self, prompt_tokens: int) -> "PromptLayout":
        """The same, for a prompt that is reported to be so long."""
        if self.is_measured:
            unknown = prompt_tokens - self.prompt_tokens
            behind = self.prompt_tokens - self.tokens_before - sum(self.tokens) - sum(self.frames)
            least = _MIN_UNKNOWN_TOKENS + _UNKNOWN_SHARE * behind
            unknown = unknown if unknown > least else 0
            return self._replace(unknown_tokens=unknown)
        least, most = _SCALES
        scale = prompt_tokens / max(self.prompt_tokens, 1)
        return self._replace(scale=min(max(scale, least), most))

    def cached_prompt(self, cached_tokens: int) -> int:
        """Leading tokens of the prompt that are cached, where so many index tokens of its documents
        are; 0 where none are."""
        if not cached_tokens:
            return 0
        frames, rest = 0, cached_tokens
        for length, frame in zip(self.tokens, self.frames, strict=True):
            if rest <= 0:
                break
            frames, rest = frames + frame, rest - length
        known = self.tokens_before + frames + cached_tokens
        return round(known * self.scale) + self.unknown_tokens

    def cached_documents(self, cached_tokens: int) -> int:
        """Tokens of documents, in index tokens, in so many leading tokens of the prompt."""
        found, begin = 0, self.start
        for length, frame, end in zip(self.tokens, self.frames, self.ends, strict=True):
            if cached_tokens >= end:
                found, begin = found + length, end
                continue
            inside = int((cached_tokens - begin) / self.scale) - frame
            return found + max(0, min(length, inside))
        return found
