"""Boost the documents of requests before the LiteLLM proxy chooses a deployment."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

from ragboost.booster.tenants import Tenants
from ragboost.config import Settings
from ragboost.errors import RagBoostError, RequestError
from ragboost.requests.formats import make_formats
from ragboost.requests.headers import RawHeaders
from ragboost.requests.history import History
from ragboost.requests.parsed_request import parse_request
from ragboost.requests.rewriter import Rewriting
from ragboost.requests.wires.registry import ANY

logger = logging.getLogger(__name__)

_CALLS = frozenset(
    f"{prefix}{name}"
    for prefix in ("", "a")
    for name in ("completion", "text_completion", "anthropic_messages", "responses")
)
# LiteLLM's other fields are its own objects, or unrelated to documents.
_FIELDS = (
    *("model", *ANY.messages, *ANY.prompts, *ANY.instructions, *ANY.tools, *ANY.stored),
    *("documents", "chat_template_kwargs", "citation_options", "ragboost", "cache_salt"),
    "session_id",
)


class RefusedError(RequestError):
    def __init__(self, error: RequestError) -> None:
        super().__init__(str(error), param=error.param)
        self.message = str(error)
        self.type = "invalid_request_error"
        self.status_code = error.status


class BoostHook(CustomLogger):  # type: ignore[misc]
    """Order, de-duplicate and hint the documents of completion requests, in the proxy's shapes.

    A conversation is followed if the request names it (`ragboost.session_id`,
    `x-litellm-session-id`, ...). There is one index per model.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__()
        settings = settings or Settings()
        self._formats = make_formats(settings, maps_answers=False)
        self._label_template = settings.hints.label_template
        self._tenants = Tenants(settings)
        self._history = History.of(settings)

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> dict[str, Any]:
        fields = {name: data[name] for name in _FIELDS if name in data}
        if str(getattr(call_type, "value", call_type)) not in _CALLS or not fields:
            return data
        try:
            rewritten = self._rewrite(fields, _headers(data), user=_user(user_api_key_dict))
        except RequestError as error:
            raise RefusedError(error) from error
        except RagBoostError as error:
            logger.warning("forwarding without boosting: %s", error)
            return data
        kept = {name: value for name, value in data.items() if name not in _FIELDS}
        return {**kept, **rewritten}

    def _rewrite(
        self, fields: Mapping[str, Any], headers: RawHeaders, *, user: str
    ) -> dict[str, Any]:
        raw = json.dumps(fields).encode()
        request = parse_request(raw, headers, formats=self._formats, user=user)
        conversation = self._history.known(request.chain) if request.is_followed else None
        booster = self._tenants.get(request.tenant_key).booster("litellm")
        result = Rewriting(request, conversation, label_template=self._label_template)
        result.boost(booster)
        self._history.add(result.delta)
        rewritten: dict[str, Any] = json.loads(request.body.encode(result.fields))
        return rewritten


def _headers(data: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    request = data.get("proxy_server_request") or {}
    return [
        (str(name).lower().encode(), str(value).encode())
        for name, value in (request.get("headers") or {}).items()
    ]


def _user(user_api_key_dict: Any) -> str:
    return str(getattr(user_api_key_dict, "api_key", None) or "")
