"""RAGBoost inside other frameworks, one folder each, with the extra of the same name."""
