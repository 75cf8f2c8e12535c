"""Chunk reuse in vLLM's API server: `--middleware ragboost.chunk_cache.vllm.front.Front`.

Uses vLLM's own route `/tokenize`, and the request field `kv_transfer_params` to pass the
plan on. Knows vLLM's routes and fields. Does not import vLLM.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ragboost.chunk_cache.core.options import FIELD, ReuseDefaults, ReuseOptions
from ragboost.chunk_cache.core.request import SERVED_POLICIES
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.http.inner import Scope, call_route
from ragboost.chunk_cache.http.middleware import CHAT, ExactError, ReuseMiddleware
from ragboost.chunk_cache.http.status import STARTING, read_status
from ragboost.chunk_cache.vllm.flags import CONNECTOR_MODULE

_PARAMS = "kv_transfer_params"
_TOKENIZE_TEXT = ("model", "prompt", "add_special_tokens")
_TOKENIZE_CHAT = (
    "model",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
)


class Front(ReuseMiddleware):
    """Middleware of vLLM's API server."""

    _defaults: ReuseDefaults | None = None  # once the engine has checked itself

    def defaults(self, scope: Scope) -> ReuseDefaults:
        """Return what the flags and the engine's own check at its start say."""
        if self._defaults is not None:
            return self._defaults
        defaults = self._read_defaults(scope["app"].state.vllm_config)
        if defaults.refusal != STARTING:
            self._defaults = defaults
        return defaults

    async def prompt_ids(self, scope: Scope, fields: Mapping[str, Any]) -> Sequence[int] | None:
        """Return the ids of a request's prompt."""
        names = _TOKENIZE_CHAT if scope["path"] == CHAT else _TOKENIZE_TEXT
        body = {name: fields[name] for name in names if name in fields}
        return _ids(await call_route(self._app, scope, "/tokenize", body), "tokens")

    async def text_ids(self, scope: Scope, text: str) -> Sequence[int] | None:
        """Return the ids of a text alone."""
        body: dict[str, Any] = {"prompt": text, "add_special_tokens": False}
        return _ids(await call_route(self._app, scope, "/tokenize", body), "tokens")

    def planned(self, fields: Mapping[str, Any], plan: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the body with the plan. vLLM renders the prompt by itself: where that gives other
        ids than `/tokenize`, chunks are not found, and computed."""
        if fields.get(_PARAMS):
            raise ExactError("other_kv_transfer")
        return {**fields, _PARAMS: {FIELD: plan}}

    def _read_defaults(self, config: Any) -> ReuseDefaults:
        transfer = config.kv_transfer_config
        if transfer is None or transfer.kv_connector_module_path != CONNECTOR_MODULE:
            return ReuseDefaults(refusal=f"vLLM was started without {CONNECTOR_MODULE}")
        settings = EngineChunkSettings.read(transfer.kv_connector_extra_config)
        return ReuseDefaults(
            is_approx=settings.reuse == "approx",
            options=ReuseOptions(settings.policy, settings.ratio),
            refusal=read_status(config.instance_id),
            policies=SERVED_POLICIES,
        )


def _ids(response: Any, name: str) -> Sequence[int] | None:
    answer = response.json()
    ids = answer.get(name) if isinstance(answer, dict) else None
    return ids if isinstance(ids, list) and ids else None
