"""Read the chunks and options of a request from `kv_transfer_params` (vLLM) or `custom_params`
(SGLang). A chunk is looked up by the prompt's own tokens, so that a wrong position finds nothing.
Malformed input turns reuse off for the request, with a reason."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from ragboost.chunk_cache.core.options import FIELD, ChunkFields, ReuseOptions, SelectionFields
from ragboost.chunk_cache.fields import read_fields
from ragboost.chunk_cache.selection import DEFAULT_POLICY, DEFAULT_RATIO, make_policy
from ragboost.chunk_cache.store.keys import PUBLIC, Place, place_of
from ragboost.errors import RequestError

PARAMS_KEY = FIELD
"""The key of our entry in `kv_transfer_params`."""
VERSION = 1
MIN_CHUNK_TOKENS = 8
"""Shorter chunks cost more to keep than to compute."""
_CHUNKS = f"{FIELD}.chunks"


@dataclass(frozen=True, slots=True)
class EngineChunkRequest:
    """The chunks of a prompt and how to reuse them."""

    chunks: tuple[tuple[int, int], ...] = ()  # positions (start, stop) in the prompt, ascending
    policy: str = DEFAULT_POLICY
    ratio: float = DEFAULT_RATIO  # share of the approximate tokens to recompute, 0 to 1
    granularity: int = 1  # tokens per block of the selection
    tenant: str = ""  # salt of stored chunks and of approximate blocks
    reason: str | None = None  # why the request is computed exactly; None: it may reuse chunks
    measure: bool = False  # compute the last chunk behind the others, and store measurements of it
    # Leading chunks that no approximate KV may fill: the prefix cache holds them afterwards.
    exact_chunks: int = 0
    is_public: bool = False  # store the only chunk for all tenants, if it is computed exactly

    @property
    def beginning(self) -> int:
        return self.chunks[0][0] if self.chunks else 0

    @property
    def reuse_start(self) -> int | None:
        """First token that approximate KV may fill; None: no token."""
        number = self.exact_chunks
        return self.chunks[number][0] if number < len(self.chunks) else None

    def place(self, number: int) -> Place:
        """Return which KV of a chunk of this number the prompt prefers."""
        if self.measure or make_policy(self.policy).reuses_plain:  # measured are those (eq. 10)
            return "alone"
        return place_of(number)


class _PlanFields(SelectionFields, ChunkFields):
    granularity: int | None = Field(None, ge=1)


def read_request(
    params: Mapping[str, Any] | None, *, num_tokens: int, defaults: EngineChunkRequest
) -> EngineChunkRequest | None:
    """Return what a request asks for; None if it does not mention chunks."""
    fields = (params or {}).get(PARAMS_KEY)
    if fields is None:
        return None
    if not isinstance(fields, dict):
        return EngineChunkRequest(reason="bad_options")
    if fields.get("version", VERSION) != VERSION:
        return EngineChunkRequest(reason="unknown_version")
    try:
        plan = read_fields(_PlanFields, fields, name=FIELD)
        chunks = tuple((start, stop) for _, start, stop in plan.positions(is_chat=False))
    except RequestError as error:
        is_position = (error.param or "").startswith(_CHUNKS)
        return EngineChunkRequest(reason="bad_chunks" if is_position else "bad_options")
    if fields.get("chunks") is None or (chunks and chunks[-1][1] > num_tokens):
        return EngineChunkRequest(reason="bad_chunks")
    policy, ratio = plan.options(ReuseOptions(defaults.policy, defaults.ratio))
    granularity = plan.granularity or defaults.granularity
    if granularity > num_tokens:
        return EngineChunkRequest(reason="bad_options")
    tenant, reason = plan.tenant, None if fields.get("reuse", True) is True else "reuse_off"
    is_public = fields.get("public") is True  # the server in front has checked the key
    if is_public:
        tenant, reason = PUBLIC, reason if len(chunks) == 1 else "not_alone"
    return EngineChunkRequest(
        chunks,
        policy,
        ratio,
        granularity,
        tenant,
        reason,
        plan.measure,
        plan.exact_chunks,
        is_public,
    )


def in_namespace(request: EngineChunkRequest, *names: str | None) -> EngineChunkRequest:
    """Return the request with stored chunks apart from those of other namespaces."""
    if request.is_public:
        return request
    return replace(request, tenant=namespaced(request.tenant, *names))


def namespaced(tenant: str, *names: str | None) -> str:
    if not any(names):
        return tenant
    return hashlib.sha256(json.dumps([tenant, *names]).encode()).hexdigest()
