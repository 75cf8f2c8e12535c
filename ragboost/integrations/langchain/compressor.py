"""A document compressor for LangChain's contextual compression retriever."""

from collections.abc import Sequence

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor
from langchain_core.documents import Document as LangChainDocument
from pydantic import ConfigDict, Field

from ragboost.booster.booster import Booster
from ragboost.integrations.langchain.documents import boosted_documents


class BoostCompressor(BaseDocumentCompressor):
    """Put documents into the order that reuses the prefix cache, each once.

    It must run last, since reordering its documents undoes it. `format_documents` and
    `DocumentPrompt` write them with their labels and the order hint.
    """

    # One per backend and model, shared by all chains that use them.
    booster: Booster = Field(default_factory=Booster)

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    def compress_documents(
        self, documents: Sequence[LangChainDocument], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[LangChainDocument]:
        return boosted_documents(self.booster, query, documents)
