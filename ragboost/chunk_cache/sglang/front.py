"""Chunk reuse in SGLang's API server: a middleware that the plug-in adds to its app."""

import json
from collections.abc import Mapping
from typing import Any

from ragboost.chunk_cache.core.request import PARAMS_KEY
from ragboost.chunk_cache.http.asgi import Scope
from ragboost.chunk_cache.http.middleware import ExactError, ReuseMiddleware, StartedEngine
from ragboost.chunk_cache.sglang.flags import instance, read_settings

_PARAMS = "custom_params"
_TOKENIZE_TEXT = ("model", "prompt")
_NOT_RENDERED = ("stream", "stream_options", "n", _PARAMS)


class SGLangFront(ReuseMiddleware):
    """Middleware of SGLang's API server. Its scheduler has no answer "ask again" for a request
    whose chunks are on their way, so requests wait here."""

    loads_first = True
    params_field = _PARAMS

    def engine(self, scope: Scope) -> StartedEngine | str:
        args = getattr(scope["app"], "server_args", None)
        if args is None:
            return "SGLang was started with several tokenizer workers"
        ranks, name = args.tp_size, instance(args.port)
        return StartedEngine(read_settings(args), name, ranks, takes_commands=ranks == 1)

    def namespace(self, fields: Mapping[str, Any]) -> list[str | None]:
        names = (fields.get(name) for name in ("extra_key", "cache_salt"))
        return [name if isinstance(name, str) else None for name in names]

    def prompt_body(self, fields: Mapping[str, Any], *, is_chat: bool) -> Mapping[str, Any]:
        if is_chat:  # the template may depend on any field
            return {name: fields[name] for name in fields if name not in _NOT_RENDERED}
        return {name: fields[name] for name in _TOKENIZE_TEXT if name in fields}

    def planned(self, fields: Mapping[str, Any], plan: Mapping[str, Any]) -> Mapping[str, Any]:
        params = fields.get(_PARAMS) or {}
        if not isinstance(params, dict):
            raise ExactError("other_custom_params")
        # SGLang takes no nested values.
        return {**fields, _PARAMS: {**params, PARAMS_KEY: json.dumps(plan)}}
