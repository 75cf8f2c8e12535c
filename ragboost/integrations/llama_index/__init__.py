"""LlamaIndex components: the extra `llama-index`."""

from ragboost.errors import import_extra

import_extra("llama_index.core", extra="llama-index")

from ragboost.integrations.llama_index.chat_engine import BoostChatEngine
from ragboost.integrations.llama_index.nodes import BoostPostprocessor, by_relevance, extra_body

__all__ = [
    "BoostChatEngine",
    "BoostPostprocessor",
    "by_relevance",
    "extra_body",
]
