"""Order, de-duplicate and hint documents: where index, ordering, dedup and hints meet."""
