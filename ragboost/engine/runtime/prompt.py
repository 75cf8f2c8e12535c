"""Prompts in token ids, and how their KV may be computed."""

from typing import NamedTuple

from ragboost.chunk_cache.core.request import EngineChunkRequest
from ragboost.graph.layout import Layout


class PromptTokens(NamedTuple):
    token_ids: list[int]  # the whole prompt
    chunks: EngineChunkRequest | None = None  # how chunks are reused; None: computed exactly
    graph: Layout | None = None  # the same prompt as a tree; None: ordinary attention
