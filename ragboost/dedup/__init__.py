"""De-duplication: send a document once per request and once per session (RAGBoost section 6)."""

from ragboost.dedup.documents import Unique, distinct_elements, unique_documents

__all__ = ["Unique", "distinct_elements", "unique_documents"]
