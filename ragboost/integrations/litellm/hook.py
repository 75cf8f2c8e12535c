"""Boost the documents of requests before the LiteLLM proxy chooses a deployment."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

from ragboost.config import Settings
from ragboost.errors import RagBoostError, RequestError
from ragboost.rewriting.body import JsonBody
from ragboost.rewriting.conversations import Conversations
from ragboost.rewriting.rewriter import Rewriter
from ragboost.rewriting.session_id import session_name
from ragboost.rewriting.tenants import TenantKey, Tenants

logger = logging.getLogger(__name__)

_CALLS = frozenset(
    f"{prefix}{name}"
    for prefix in ("", "a")
    for name in ("completion", "text_completion", "anthropic_messages", "responses")
)
# The other fields of LiteLLM's data are its own objects, or have nothing to do with documents.
_FIELDS = (
    "model",
    "messages",
    "prompt",
    "input",
    "system",
    "instructions",
    "tools",
    "documents",
    "chat_template_kwargs",
    "citation_options",
    "ragboost",
    "cache_salt",
    "session_id",
    "conversation",
    "previous_response_id",
)


class RefusedError(RequestError):
    """Bad input, in the form in which LiteLLM tells it to the client."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(str(error), param=error.param)
        self.message = str(error)
        self.type = "invalid_request_error"
        self.status_code = error.status


class BoostHook(CustomLogger):  # type: ignore[misc]
    """Order, de-duplicate and hint the documents of completion requests.

    Knows the shapes that our own proxy knows. A conversation is followed where the request names
    it (`ragboost.session_id`, `x-litellm-session-id`, ...). There is one index per model: of the
    deployments that LiteLLM balances, each request should meet the same one again.

    Args:
        settings: None: the defaults.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__()
        self._settings = settings or Settings()
        self._rewriter = Rewriter(self._settings)
        self._tenants = Tenants(self._settings)
        self._conversations = Conversations(
            max_sessions=self._settings.session.max_sessions,
            max_bytes=self._settings.session.max_bytes,
            ttl_s=self._settings.session.ttl_s,
        )

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> dict[str, Any]:
        """Return the request with its documents boosted; see LiteLLM's `CustomLogger`.

        Raises:
            RefusedError: the `ragboost` object is malformed; LiteLLM answers with a 400.
        """
        fields = {name: data[name] for name in _FIELDS if name in data}
        if str(getattr(call_type, "value", call_type)) not in _CALLS or not fields:
            return data
        try:
            body = self._rewritten(fields, _headers(data), user=_user(user_api_key_dict))
        except RequestError as error:
            raise RefusedError(error) from error
        except RagBoostError as error:
            logger.warning("forwarding without boosting: %s", error)
            return data
        kept = {name: value for name, value in data.items() if name not in _FIELDS}
        return {**kept, **body}

    def _rewritten(
        self, fields: Mapping[str, Any], headers: list[tuple[bytes, bytes]], *, user: str
    ) -> dict[str, Any]:
        payload = JsonBody.parse(json.dumps(fields).encode())
        name = session_name(payload.body, headers)
        key = TenantKey.of(payload.body)
        conversation = None
        if name is not None:
            conversation = self._conversations.get(json.dumps([user, *key, name]))
        booster = self._tenants.get(key).booster("litellm")
        rewritten = self._rewriter.rewrite(payload, booster, conversation)
        if conversation is not None and conversation.sent:
            self._conversations.put(conversation)
        body: dict[str, Any] = json.loads(payload.encode(rewritten.body))
        return body


def _headers(data: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    request = data.get("proxy_server_request") or {}
    return [
        (str(name).lower().encode(), str(value).encode())
        for name, value in (request.get("headers") or {}).items()
    ]


def _user(user_api_key_dict: Any) -> str:
    """LiteLLM's hash of the key, under which nobody else finds a conversation."""
    return str(getattr(user_api_key_dict, "api_key", None) or "")
