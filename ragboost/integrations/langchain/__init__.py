"""LangChain components; only `BoostMiddleware` needs more than `langchain-core`."""

from typing import TYPE_CHECKING, Any

from ragboost.errors import import_extra

import_extra("langchain_core", extra="langchain")

from ragboost.integrations.langchain.documents import DocumentPrompt, extra_body, format_documents
from ragboost.integrations.langchain.prompt import BoostPrompt
from ragboost.integrations.langchain.retriever import BoostCompressor, BoostRetriever

if TYPE_CHECKING:
    from ragboost.integrations.langchain.middleware import BoostMiddleware as BoostMiddleware

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
    if name != "BoostMiddleware":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_extra("langchain.agents", extra="langchain")
    from ragboost.integrations.langchain.middleware import BoostMiddleware

    return BoostMiddleware


def __dir__() -> list[str]:
    return [*globals(), "BoostMiddleware"]
