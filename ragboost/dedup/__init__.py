"""De-duplication: send a document once per request and once per session (RAGBoost section 6)."""

from ragboost.dedup.documents import distinct_elements, unique_documents

__all__ = ["distinct_elements", "unique_documents"]
