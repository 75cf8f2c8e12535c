"""Chunk reuse in vLLM's API server: `--middleware ragboost.engine_chunks.vllm.front.Front`.

Uses vLLM's own routes to render and to tokenise, and the request field `kv_transfer_params` to
pass token ids and plan on. Knows vLLM's routes and fields. Does not import vLLM.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ragboost.engine_chunks.http.inner import Scope, call_route
from ragboost.engine_chunks.http.middleware import CHAT, ExactError, ReuseMiddleware
from ragboost.engine_chunks.options import FIELD, ReuseDefaults, ReuseOptions
from ragboost.engine_chunks.settings import EngineChunkSettings
from ragboost.engine_chunks.status import STARTING, read_status

CONNECTOR_MODULE = "ragboost.engine_chunks.vllm.connector"
_PARAMS = "kv_transfer_params"


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
        """Return the ids that vLLM itself makes of a request's prompt."""
        if scope["path"] == CHAT:
            body = {name: value for name, value in fields.items() if name != "stream_options"}
            body["stream"] = False
            return _ids(await call_route(self._app, scope, f"{CHAT}/render", body), "token_ids")
        names = ("model", "prompt", "add_special_tokens")
        body = {name: fields[name] for name in names if name in fields}
        return _ids(await call_route(self._app, scope, "/tokenize", body), "tokens")

    async def text_ids(self, scope: Scope, text: str) -> Sequence[int] | None:
        """Return the ids of a text alone."""
        body = {"prompt": text, "add_special_tokens": False}
        return _ids(await call_route(self._app, scope, "/tokenize", body), "tokens")

    def planned(
        self,
        fields: Mapping[str, Any],
        ids: Sequence[int],
        *,
        plan: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """Return the body with the plan; vLLM takes the ids instead of rendering once more."""
        if fields.get(_PARAMS):
            raise ExactError("other_kv_transfer")
        if "messages" in fields:
            return {**fields, _PARAMS: {"prompt_token_ids": ids, FIELD: plan}}
        prompt = {} if fields.get("echo") else {"prompt": ids, "add_special_tokens": False}
        return {**fields, **prompt, _PARAMS: {FIELD: plan}}

    def _read_defaults(self, config: Any) -> ReuseDefaults:
        transfer = config.kv_transfer_config
        if transfer is None or transfer.kv_connector_module_path != CONNECTOR_MODULE:
            return ReuseDefaults(refusal=f"vLLM was started without {CONNECTOR_MODULE}")
        settings = EngineChunkSettings.read(transfer.kv_connector_extra_config)
        return ReuseDefaults(
            is_approx=settings.reuse == "approx",
            options=ReuseOptions(settings.policy, settings.ratio),
            refusal=read_status(config.instance_id),
        )


def _ids(response: Any, name: str) -> Sequence[int] | None:
    answer = response.json()
    ids = answer.get(name) if isinstance(answer, dict) else None
    return ids if isinstance(ids, list) and ids else None
