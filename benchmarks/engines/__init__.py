"""Real engines: hit rate and time with and without RAGBoost, chunk reuse inside them."""
