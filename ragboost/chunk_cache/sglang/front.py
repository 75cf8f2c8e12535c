"""Chunk reuse in SGLang's API server: a middleware that the plug-in adds to SGLang's app.

Uses SGLang's own route `/tokenize`, and the request field `custom_params` to pass the plan on.
Knows SGLang's routes and fields. Does not import SGLang.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ragboost.chunk_cache.core.options import FIELD, ReuseDefaults, ReuseOptions
from ragboost.chunk_cache.core.request import SERVED_POLICIES
from ragboost.chunk_cache.http.inner import Scope, call_route
from ragboost.chunk_cache.http.middleware import CHAT, ExactError, ReuseMiddleware
from ragboost.chunk_cache.http.status import STARTING, read_status
from ragboost.chunk_cache.sglang.flags import instance, read_settings

_PARAMS = "custom_params"
_TOKENIZE_TEXT = ("model", "prompt")
_NOT_RENDERED = ("stream", "stream_options", "n", _PARAMS)


class SGLangFront(ReuseMiddleware):
    """Middleware of SGLang's API server."""

    _defaults: ReuseDefaults | None = None  # once the engine has checked itself

    def defaults(self, scope: Scope) -> ReuseDefaults:
        """Return what the flags and the engine's own check at its start say."""
        if self._defaults is not None:
            return self._defaults
        args = getattr(scope["app"], "server_args", None)
        if args is None:  # several tokenizer processes
            return ReuseDefaults(refusal="SGLang was started with several tokenizer workers")
        settings = read_settings(args)
        defaults = ReuseDefaults(
            is_approx=settings.reuse == "approx",
            options=ReuseOptions(settings.policy, settings.ratio),
            refusal=read_status(instance(args.port)),
            policies=SERVED_POLICIES,
        )
        if defaults.refusal != STARTING:
            self._defaults = defaults
        return defaults

    async def prompt_ids(self, scope: Scope, fields: Mapping[str, Any]) -> Sequence[int] | None:
        """Return the ids of a request's prompt."""
        if scope["path"] == CHAT:  # the template may depend on any field
            body = {name: fields[name] for name in fields if name not in _NOT_RENDERED}
        else:
            body = {name: fields[name] for name in _TOKENIZE_TEXT if name in fields}
        return _ids(await call_route(self._app, scope, "/tokenize", body))

    async def text_ids(self, scope: Scope, text: str) -> Sequence[int] | None:
        """Return the ids of a text alone."""
        body: dict[str, Any] = {"prompt": text, "add_special_tokens": False}
        return _ids(await call_route(self._app, scope, "/tokenize", body))

    def planned(self, fields: Mapping[str, Any], plan: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the body with the plan. SGLang renders the prompt by itself: where that gives
        other ids than `/tokenize`, chunks are not found, and computed."""
        params = fields.get(_PARAMS) or {}
        if not isinstance(params, dict):
            raise ExactError("other_custom_params")
        # SGLang takes no nested values.
        return {**fields, _PARAMS: {**params, FIELD: json.dumps(plan)}}


def _ids(response: Any) -> Sequence[int] | None:
    answer = response.json()
    ids = answer.get("tokens") if isinstance(answer, dict) else None
    is_one = isinstance(ids, list) and ids and isinstance(ids[0], int)
    return ids if is_one else None
