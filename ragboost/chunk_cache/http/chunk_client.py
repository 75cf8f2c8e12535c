"""Talk over HTTP to a running engine that reuses chunks."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from ragboost.chunk_cache.core.request import PARAMS_KEY
from ragboost.errors import (
    BackendConnectionError,
    BackendStatusError,
    ConfigError,
    RequestError,
)

TIMEOUT_S = 600.0
_DEFAULT_CONTEXT = 4096
_REFUSALS = (400, 413, 422)


class ChunkClient:
    """An engine, whose chunks of a `tenant` and `cache_salt`, or with its `public_key` of all
    tenants, are stored. Safe to use from several threads."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        tenant: str = "",
        cache_salt: str | None = None,
        public_key: str | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--engine must be an http:// or https:// address, got {url!r}")
        self.max_tokens = _DEFAULT_CONTEXT  # context length, once `check` has asked for it
        self._url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._model = ""
        if public_key is not None and (tenant or cache_salt):
            raise ConfigError("documents for all tenants have no tenant and no cache salt")
        self._tenant, self._cache_salt, self._public_key = tenant, cache_salt, public_key

    @property
    def stores_for_all(self) -> bool:
        return self._public_key is not None

    def __repr__(self) -> str:
        return f"ChunkClient({self._url!r})"

    def check(self) -> None:
        """Read the model's name and context length; `ConfigError`: it cannot reuse chunks."""
        try:
            facts = self._send("/chunk_reuse", None)
        except BackendStatusError as error:
            raise ConfigError(
                f"{self._url} does not reuse chunks: start it with the flags that `python -m "
                f"ragboost.chunk_cache vllm` prints ({error})"
            ) from None
        if not facts.get("is_possible"):
            raise ConfigError(f"{self._url} cannot reuse chunks: {facts.get('refusal')}")
        models = self._send("/v1/models", None).get("data") or [{}]
        self._model = str(models[0].get("id", ""))
        self.max_tokens = int(models[0].get("max_model_len") or _DEFAULT_CONTEXT)

    def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        chunks: Sequence[Sequence[int]],
        options: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Send a chat with documents at `[message, start, stop]`; return its usage. Raises
        `RequestError` if the engine refuses this prompt, such as one that is too long."""
        ours = {"chunks": chunks, **options}
        if self._public_key is not None:
            ours["public"] = self._public_key
        if self._tenant:
            ours["tenant"] = self._tenant
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            "max_tokens": 1,
            "temperature": 0,
            PARAMS_KEY: ours,
        }
        if self._cache_salt:
            body["cache_salt"] = self._cache_salt
        usage = self._send("/v1/chat/completions", body).get("usage")
        return usage if isinstance(usage, dict) else {}

    def _send(self, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data=data, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                fields = json.loads(response.read())
        except urllib.error.HTTPError as error:
            text = error.read()[:300].decode(errors="replace")
            refusal = RequestError if error.code in _REFUSALS else BackendStatusError
            raise refusal(f"{self._url}{path}: status {error.code}: {text}") from None
        except (OSError, ValueError) as error:
            raise BackendConnectionError(f"{self._url}{path}: {error}") from None
        if not isinstance(fields, dict):
            raise BackendStatusError(f"{self._url}{path}: not a JSON object")
        return fields
