"""Read what a request asks of chunk reuse: the `ragboost` object of its body, the plan that the
engine gets with it, and the report of where its prompt's tokens came from.

    {"reuse": "exact" | "approx" | {"policy": "anchored", "ratio": 0.15},
     "tenant": "...",                            shares stored chunks, within a `cache_salt`
     "chunks": [[start, stop], ...],             in a prompt: characters, or tokens if it is ids
               [[message, start, stop], ...],    in messages: characters of a message's text
     "exact_chunks": 2,                          so many leading ones are computed, not reused
     "measure": true,                            measure the last chunk behind the others
     "public": "..."}                            the engine's public key: store for all tenants

The same for every engine. Knows JSON shapes. Does not know texts or tokens. A malformed field
raises `RequestError`, which names it; a malformed plan turns reuse off for the request.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hmac import compare_digest
from typing import Annotated, Any, NamedTuple

import msgspec
from pydantic import AfterValidator, ConfigDict, Field

from ragboost.chunk_cache.fields import Fields, Ratio, read_fields
from ragboost.chunk_cache.selection import DEFAULT_POLICY, DEFAULT_RATIO, POLICIES
from ragboost.chunk_cache.store.keys import PUBLIC, Place, place_of
from ragboost.errors import RequestError, show

FIELD = "ragboost"
PARAMS_KEY = FIELD
"""The key of our entry in `kv_transfer_params`."""
VERSION = 1
MIN_CHUNK_TOKENS = 8
"""Shorter chunks cost more to keep than to compute."""
MAX_CHUNKS = 4096
_EXACT, _APPROX = "exact", "approx"
_CHUNKS, _PUBLIC, _REUSE = f"{FIELD}.chunks", f"{FIELD}.public", f"{FIELD}.reuse"


def _check_policy(name: str) -> str:
    if name not in POLICIES:
        raise ValueError(f"must be one of {', '.join(POLICIES)}")
    return name


PolicyName = Annotated[str, AfterValidator(_check_policy)]
_Row = Annotated[list[Annotated[int, Field(ge=0)]], Field(strict=False)]  # also a tuple


class ReuseOptions(NamedTuple):
    policy: str = DEFAULT_POLICY  # selects the reused tokens to recompute, one of `POLICIES`
    ratio: float = DEFAULT_RATIO  # recompute ratio, from 0 to 1


class ReuseDefaults(NamedTuple):
    """Chunk reuse of requests that do not ask for it."""

    is_approx: bool = False  # they reuse chunks
    options: ReuseOptions = ReuseOptions()  # policy and ratio, unless a request gives them
    refusal: str | None = None  # why this engine cannot reuse chunks; None: it can

    def describe(self) -> dict[str, Any]:
        return {
            "is_possible": self.refusal is None,
            "refusal": self.refusal,
            "default": "approx" if self.is_approx else "exact",
            "policy": self.options.policy,
            "ratio": self.options.ratio,
            "policies": list(POLICIES),
        }


class SelectionFields(Fields):
    policy: PolicyName | None = None
    ratio: Ratio | None = None

    def options(self, defaults: ReuseOptions) -> ReuseOptions:
        policy = self.policy or defaults.policy
        return ReuseOptions(policy, defaults.ratio if self.ratio is None else self.ratio)


class ChunkFields(Fields):
    """The chunks of a request, and what becomes of them; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    chunks: list[_Row] = Field(
        [],
        strict=False,
        max_length=MAX_CHUNKS,
        description="Positions of documents: [message, start, stop], or [start, stop] in a prompt.",
    )
    exact_chunks: int = Field(
        0,
        ge=0,
        le=MAX_CHUNKS,
        description="Leading chunks that are computed exactly, so that the prefix cache holds "
        "them, instead of being reused.",
    )
    measure: bool = Field(
        False, description="Measure the last chunk behind the others, and store that."
    )
    tenant: str = Field(
        "", max_length=256, description="Stored chunks are shared with requests of the same one."
    )

    def positions(self, *, is_chat: bool) -> "list[ChunkPosition]":
        """Return the positions of the chunks, ascending and without overlaps."""
        shape = "[message, start, stop]" if is_chat else "[start, stop]"
        found: list[ChunkPosition] = []
        for number, row in enumerate(self.chunks):
            if len(row) != (3 if is_chat else 2):
                where = f"{_CHUNKS}[{number}]"
                raise RequestError(f"{where} must be {shape}, got {show(row)}", param=where)
            position = ChunkPosition(row[0] if is_chat else 0, row[-2], row[-1])
            if position.start >= position.stop or (found and not _follows(position, found[-1])):
                raise RequestError(
                    f"{_CHUNKS} must ascend without overlaps: {row!r} is out of order",
                    param=_CHUNKS,
                )
            found.append(position)
        return found


class ReuseFields(ChunkFields):
    reuse: Any = Field(
        None,
        description='Chunk reuse: "exact", "approx", or an object with `policy` and `ratio`.',
    )

    @property
    def is_exact(self) -> bool:
        return bool(self.reuse == _EXACT)

    def options(self, defaults: ReuseDefaults) -> ReuseOptions | None:
        """Return the options of a request; None: it is computed exactly. Raises `RequestError` if
        this engine cannot reuse chunks."""
        is_default = defaults.is_approx and defaults.refusal is None
        if self.is_exact or (self.reuse is None and not is_default):
            return None
        if self.reuse is None:
            return defaults.options
        if self.reuse != _APPROX and not isinstance(self.reuse, dict):
            raise RequestError(
                f'{_REUSE} must be "exact", "approx" or an object with policy and ratio',
                param=_REUSE,
            )
        if defaults.refusal is not None:
            problem = f"chunks cannot be reused here: {defaults.refusal}"
            raise RequestError(f"{_REUSE}: {problem}", param=_REUSE)
        asked = {} if self.reuse == _APPROX else self.reuse
        return read_fields(SelectionFields, asked, name=_REUSE).options(defaults.options)


class ChunkPosition(NamedTuple):
    message: int  # its number; 0 for a prompt
    start: int  # first character, or first token of a prompt of ids
    stop: int  # the one after the last


def read_public(extension: Mapping[str, Any], public_key: str) -> bool:
    """Return True if a request's only chunk is to be stored for all tenants."""
    key = extension.get("public")
    if key is None:
        return False
    is_right = isinstance(key, str) and bool(public_key)
    if not is_right or not compare_digest(key.encode("utf-8", "replace"), public_key.encode()):
        raise RequestError(f"{_PUBLIC} is not this engine's `public_key`", param=_PUBLIC)
    return True


def _follows(position: ChunkPosition, last: ChunkPosition) -> bool:
    same_message = position.message == last.message
    return position.start >= last.stop if same_message else position.message > last.message


class TokenOrigins(NamedTuple):
    """The tokens of a prompt by the origin of their KV; they add up to the prompt."""

    exact: int = 0  # from the engine's prefix cache or a stored chunk, equal to an ordinary prefill
    reused: int = 0  # from a chunk that was computed in another context, as it is
    recomputed: int = 0  # from such a chunk, selected and computed again
    computed: int = 0  # not stored: computed as ever, the question among them


class PromptReport(NamedTuple):
    origins: TokenOrigins
    reason: str | None = None  # why it reused none of them; None: it did, or found none to reuse

    @property
    def fields(self) -> dict[str, Any]:
        reason = {} if self.reason is None else {"reason": self.reason}
        return {**self.origins._asdict(), **reason}

    @classmethod
    def read(cls, fields: Any) -> "PromptReport | None":
        """Return a report that was sent as JSON; None if it has another shape."""
        try:
            counts = msgspec.convert([fields.get(n) for n in TokenOrigins._fields], tuple[int, ...])
            return cls(TokenOrigins(*counts), msgspec.convert(fields.get("reason"), str | None))
        except (msgspec.ValidationError, AttributeError):
            return None


@dataclass(frozen=True, slots=True)
class EngineChunkRequest:
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
    def reuse_start(self) -> int | None:
        """First token that approximate KV may fill; None: no token."""
        number = self.exact_chunks
        return self.chunks[number][0] if number < len(self.chunks) else None

    def place(self, number: int) -> Place:
        """Return which KV of a chunk of this number the prompt prefers."""
        return "alone" if self.measure else place_of(number)  # measured are those (eq. 10)


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
