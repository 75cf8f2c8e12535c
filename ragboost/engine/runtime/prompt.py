"""Prompts in token ids, and how their KV may be computed.

Knows token ids. Does not know texts, requests or tensors.
"""

from typing import NamedTuple

from ragboost.chunk_cache.core.options import ReuseOptions
from ragboost.graph.conversation import GraphPrompt


class PromptPart(NamedTuple):
    """A chunk, or the tokens between two chunks, which are always computed.

    Attributes:
        tokens: ids, at least one.
        is_chunk: whether the KV may be stored and reused.
    """

    tokens: tuple[int, ...]
    is_chunk: bool


class CutPrompt(NamedTuple):
    """A prompt cut at its chunks.

    Attributes:
        system: ids before the first chunk; stored chunks were computed after these.
        parts: chunks and the tokens between them, in prompt order.
        question: ids after the last chunk, at least one.
    """

    system: tuple[int, ...]
    parts: tuple[PromptPart, ...]
    question: tuple[int, ...]

    @property
    def token_ids(self) -> list[int]:
        """All ids of the prompt."""
        inner = (token for part in self.parts for token in part.tokens)
        return [*self.system, *inner, *self.question]

    @property
    def chunks(self) -> list[tuple[int, ...]]:
        """Ids of each chunk."""
        return [part.tokens for part in self.parts if part.is_chunk]


class PromptTokens(NamedTuple):
    """A prompt for the engine.

    Attributes:
        token_ids: the whole prompt.
        cut: the same prompt cut at its chunks; set where `reuse` is.
        reuse: how stored chunks are reused; None: the prompt is computed exactly.
        graph: the same prompt as a tree; None: ordinary causal attention.
        keep_tokens: prompt tokens per layer and head that remain for decoding, with `cut` only, see
            `snapkv.evict`; None: all.
    """

    token_ids: list[int]
    cut: CutPrompt | None = None
    reuse: ReuseOptions | None = None
    graph: GraphPrompt | None = None
    keep_tokens: int | None = None
