"""Read the options and positions of chunk reuse in the `ragboost` object of a request.

    {"reuse": "exact" | "approx" | {"policy": "anchored", "ratio": 0.15},
     "tenant": "...",                            shares stored chunks, within a `cache_salt`
     "chunks": [[start, stop], ...],             in a prompt: characters, or tokens if it is ids
               [[message, start, stop], ...],    in messages: characters of a message's text
     "exact_chunks": 2,                          so many leading ones are computed, not reused
     "measure": true,                            measure the last chunk behind the others
     "public": "..."}                            the engine's public key: store for all tenants

The same for every engine. Knows JSON shapes. Does not know texts or tokens. A malformed field
raises `RequestError`, which names it.
"""

from collections.abc import Mapping
from hmac import compare_digest
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, ConfigDict, Field

from ragboost.chunk_cache.fields import Fields, Ratio, read_fields
from ragboost.chunk_cache.selection import DEFAULT_POLICY, DEFAULT_RATIO, POLICIES
from ragboost.errors import RequestError, show

FIELD = "ragboost"
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
        """The request asks to be computed exactly."""
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
    """Position of a chunk in the text of a message."""

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
