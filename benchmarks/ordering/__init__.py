"""Orders of documents: offline plans, online ordering, how far both are from the best."""
