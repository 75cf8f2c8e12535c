"""LlamaIndex components: `pip install '.[llama-index]'`. Names are imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ragboost.errors import import_extra

if TYPE_CHECKING:
    from ragboost.integrations.llama_index.chat_engine import BoostChatEngine as BoostChatEngine
    from ragboost.integrations.llama_index.nodes import by_relevance as by_relevance
    from ragboost.integrations.llama_index.nodes import extra_body as extra_body
    from ragboost.integrations.llama_index.postprocessor import (
        BoostPostprocessor as BoostPostprocessor,
    )
    from ragboost.integrations.llama_index.retriever import BoostNodeRetriever as BoostNodeRetriever

import_extra("llama_index.core", extra="llama-index")

_HOME = {
    "BoostChatEngine": "chat_engine",
    "BoostPostprocessor": "postprocessor",
    "BoostNodeRetriever": "retriever",
    "by_relevance": "nodes",
    "extra_body": "nodes",
}
__all__ = [
    "BoostChatEngine",
    "BoostNodeRetriever",
    "BoostPostprocessor",
    "by_relevance",
    "extra_body",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
