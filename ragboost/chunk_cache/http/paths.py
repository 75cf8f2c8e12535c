"""Paths of an engine's API server that the middleware takes part in."""

import re
from types import MappingProxyType

STORE, METRICS = "/chunk_store", "/metrics"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PREFETCHES = MappingProxyType({f"/chunk_prefetch{path}": path for path in (CHAT, COMPLETIONS)})
# Last parts of paths of vLLM and SGLang whose bodies may have parameters of the engine.
PROMPT_ROUTES = re.compile(
    "/(batch|chat|completions|decisions|generat.*|invocations|messages|responses|system.*|vertex.*)/*$"
)
