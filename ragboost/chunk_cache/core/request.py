"""Read the chunks and options of a request, as they arrive in its `kv_transfer_params` (vLLM) or
`custom_params` (SGLang).

Positions are not trusted: a chunk is looked up by the tokens of the request itself, so that a wrong
position finds nothing. Malformed input turns reuse off for the request, with a reason.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ragboost.chunk_cache.selection import DEFAULT_POLICY, DEFAULT_RATIO, POLICIES

PARAMS_KEY = "ragboost"
"""The key of our entry in `kv_transfer_params`."""
VERSION = 1
MAX_CHUNKS = 4096
MAX_TENANT = 256
SERVED_POLICIES = tuple(name for name in POLICIES if name != "oracle")
"""Policies that a request may name: no request carries the oracle's argument. Those in `MEASURED`
reuse only chunks that were measured, see `EngineChunkRequest.measure`."""


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

    @property
    def beginning(self) -> int:
        """Tokens before the first chunk."""
        return self.chunks[0][0] if self.chunks else 0


def read_request(
    params: Mapping[str, Any] | None, *, num_tokens: int, defaults: EngineChunkRequest
) -> EngineChunkRequest | None:
    """Return what a request asks for; None if it does not mention chunks.

    Args:
        params: the request's `kv_transfer_params`.
    """
    fields = (params or {}).get(PARAMS_KEY)
    if fields is None:
        return None
    if not isinstance(fields, Mapping):
        return EngineChunkRequest(reason="bad_options")
    if fields.get("version", VERSION) != VERSION:
        return EngineChunkRequest(reason="unknown_version")
    tenant = fields.get("tenant") or ""
    if not isinstance(tenant, str) or len(tenant) > MAX_TENANT:
        return EngineChunkRequest(reason="bad_options")
    chunks = _read_chunks(fields.get("chunks"), num_tokens)
    if chunks is None:
        return EngineChunkRequest(reason="bad_chunks")
    policy = fields.get("policy") or defaults.policy
    ratio = _share(fields.get("ratio"), defaults.ratio)
    granularity = fields.get("granularity") or defaults.granularity
    is_valid = (
        isinstance(policy, str)
        and policy in SERVED_POLICIES
        and _is_integer(granularity)
        and 1 <= granularity <= num_tokens
        and isinstance(fields.get("measure", False), bool)
    )
    if not is_valid or ratio is None:
        return EngineChunkRequest(chunks, tenant=tenant, reason="bad_options")
    reason = None if fields.get("reuse", True) is True else "reuse_off"
    measure = fields.get("measure", False)
    return EngineChunkRequest(chunks, policy, ratio, granularity, tenant, reason, measure)


def in_namespace(request: EngineChunkRequest, *names: str | None) -> EngineChunkRequest:
    """Return the request with stored chunks apart from those of the engine's other namespaces."""
    if not any(names):
        return request
    made_from = json.dumps([request.tenant, *names]).encode()
    return replace(request, tenant=hashlib.sha256(made_from).hexdigest())


def _read_chunks(pairs: Any, num_tokens: int) -> tuple[tuple[int, int], ...] | None:
    """Return ascending, disjoint, non-empty positions; None if they are not."""
    if not isinstance(pairs, list | tuple) or len(pairs) > MAX_CHUNKS:
        return None
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(map(_is_integer, pair)):
            return None
    chunks = tuple((start, stop) for start, stop in pairs)
    if any(start >= stop for start, stop in chunks):
        return None
    if any(before[1] > after[0] for before, after in pairwise(chunks)):
        return None
    if chunks and (chunks[0][0] < 0 or chunks[-1][1] > num_tokens):
        return None
    return chunks


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _share(value: Any, default: float) -> float | None:
    """Return a number from 0 to 1; None if it is none."""
    if value is None:
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= 1 else None
