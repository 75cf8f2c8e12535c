"""Orders of documents: plans of batches, and order on arrival."""
