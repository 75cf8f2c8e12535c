"""De-duplication: send a document once per request and once per session (RAGBoost section 6)."""

from ragboost.dedup.documents import (
    Split,
    Unique,
    distinct_elements,
    split_carried,
    unique_documents,
)

__all__ = ["Split", "Unique", "distinct_elements", "split_carried", "unique_documents"]
