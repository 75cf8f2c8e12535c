"""Measure what the order of documents, hints and de-duplication do to a model's answers."""
