"""The embedded engine: an OpenAI-compatible server around a Hugging Face causal LM, with an exact
prefix cache. Needs the extra `engine`."""

from ragboost.errors import import_extra

import_extra("torch", extra="engine")
import_extra("transformers", extra="engine")

from ragboost.engine.http.app import create_engine_app, with_events  # noqa: E402  # after the check above

__all__ = ["create_engine_app", "with_events"]
