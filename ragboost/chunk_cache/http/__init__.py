"""Front of chunk reuse in an engine's API server: ASGI only, for any engine that speaks OpenAI."""
