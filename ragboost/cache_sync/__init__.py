"""Follow the engines' prefix caches from outside; keep the context indexes in step with them."""
