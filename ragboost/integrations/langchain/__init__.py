"""LangChain components; only `BoostMiddleware` needs more than `langchain-core`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ragboost.errors import import_extra

if TYPE_CHECKING:
    from ragboost.integrations.langchain.compressor import BoostCompressor as BoostCompressor
    from ragboost.integrations.langchain.middleware import BoostMiddleware as BoostMiddleware
    from ragboost.integrations.langchain.prompt import BoostPrompt as BoostPrompt
    from ragboost.integrations.langchain.proxy import extra_body as extra_body
    from ragboost.integrations.langchain.rendering import DocumentPrompt as DocumentPrompt
    from ragboost.integrations.langchain.rendering import format_documents as format_documents
    from ragboost.integrations.langchain.retriever import BoostRetriever as BoostRetriever

import_extra("langchain_core", extra="langchain")

_HOME = {
    "BoostCompressor": "compressor",
    "BoostMiddleware": "middleware",
    "BoostPrompt": "prompt",
    "BoostRetriever": "retriever",
    "DocumentPrompt": "rendering",
    "extra_body": "proxy",
    "format_documents": "rendering",
}
__all__ = [
    "BoostCompressor",
    "BoostMiddleware",
    "BoostPrompt",
    "BoostRetriever",
    "DocumentPrompt",
    "extra_body",
    "format_documents",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "BoostMiddleware":
        import_extra("langchain.agents", extra="langchain")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
