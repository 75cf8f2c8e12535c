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
from typing import Any, NamedTuple

from ragboost.chunk_cache.selection import DEFAULT_POLICY, DEFAULT_RATIO, POLICIES
from ragboost.errors import RequestError, show

FIELD = "ragboost"
MAX_CHUNKS = 4096
MAX_TENANT = 256
_EXACT, _APPROX = "exact", "approx"


class ReuseOptions(NamedTuple):
    policy: str = DEFAULT_POLICY  # selects the reused tokens to recompute, one of `POLICIES`
    ratio: float = DEFAULT_RATIO  # recompute ratio, from 0 to 1
    tenant: str = ""  # stored chunks are shared with requests of the same one; empty: of none


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


class ChunkPosition(NamedTuple):
    """Position of a chunk in the text of a message."""

    message: int  # its number; 0 for a prompt
    start: int  # first character, or first token of a prompt of ids
    stop: int  # the one after the last


def read_options(extension: Mapping[str, Any], defaults: ReuseDefaults) -> ReuseOptions | None:
    """Return the options of a request; None: it is computed exactly. Raises `RequestError`, also if
    this engine cannot reuse chunks."""
    where, value, tenant = f"{FIELD}.reuse", extension.get("reuse"), read_tenant(extension)
    is_default = defaults.is_approx and defaults.refusal is None
    if value == _EXACT or (value is None and not is_default):
        return None
    if value is None:
        return defaults.options._replace(tenant=tenant)
    if value != _APPROX and not isinstance(value, dict):
        raise RequestError(
            f'{where} must be "exact", "approx" or an object with policy and ratio', param=where
        )
    if defaults.refusal is not None:
        raise RequestError(
            f"{where}: chunks cannot be reused here: {defaults.refusal}", param=where
        )
    options = defaults.options
    if value != _APPROX:
        if unknown := sorted(set(value) - {"policy", "ratio"}):
            raise RequestError(
                f"{where} has no field {unknown[0]!r}", param=f"{where}.{unknown[0]}"
            )
        options = read_selection(value, options, where=where)
    return options._replace(tenant=tenant)


def read_selection(
    fields: Mapping[str, Any], defaults: ReuseOptions, *, where: str = FIELD
) -> ReuseOptions:
    """Return the options with the policy and the ratio of an object whose path is `where`."""
    policy, ratio = fields.get("policy"), fields.get("ratio")
    policy = defaults.policy if policy is None else policy
    ratio = defaults.ratio if ratio is None else ratio
    if not isinstance(policy, str) or policy not in POLICIES:
        raise RequestError(
            f"{where}.policy must be one of {', '.join(POLICIES)}, got {show(policy)}",
            param=f"{where}.policy",
        )
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
        raise RequestError(
            f"{where}.ratio must be a number from 0 to 1, got {show(ratio)}", param=f"{where}.ratio"
        )
    return ReuseOptions(policy, float(ratio))


def read_tenant(extension: Mapping[str, Any]) -> str:
    tenant = extension.get("tenant") or ""
    if not isinstance(tenant, str) or len(tenant) > MAX_TENANT:
        raise RequestError(
            f"{FIELD}.tenant must be a text of at most {MAX_TENANT} characters",
            param=f"{FIELD}.tenant",
        )
    return tenant


def read_public(extension: Mapping[str, Any], public_key: str) -> bool:
    """Return True if a request's only chunk is to be stored for all tenants."""
    where, key = f"{FIELD}.public", extension.get("public")
    if key is None:
        return False
    is_right = isinstance(key, str) and bool(public_key)
    if not is_right or not compare_digest(key.encode("utf-8", "replace"), public_key.encode()):
        raise RequestError(f"{where} is not this engine's `public_key`", param=where)
    return True


def read_measure(extension: Mapping[str, Any]) -> bool:
    measure = extension.get("measure", False)
    if not isinstance(measure, bool):
        raise RequestError(
            f"{FIELD}.measure must be true or false, got {show(measure)}", param=f"{FIELD}.measure"
        )
    return measure


def read_exact_chunks(extension: Mapping[str, Any]) -> int:
    where, number = f"{FIELD}.exact_chunks", extension.get("exact_chunks")
    if number is None:
        return 0
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_CHUNKS:
        raise RequestError(
            f"{where} must be a number from 0 to {MAX_CHUNKS}, got {show(number)}", param=where
        )
    return number


def read_positions(extension: Mapping[str, Any], *, is_chat: bool) -> list[ChunkPosition]:
    """Return the positions of the chunks, ascending and without overlaps."""
    import msgspec  # not at the top: clients on the command line need the names here only

    where, width = f"{FIELD}.chunks", 3 if is_chat else 2
    try:
        rows = msgspec.convert(extension.get("chunks") or [], list[list[int]])
    except msgspec.ValidationError as error:
        raise RequestError(f"{where}: {error}", param=where) from None
    if len(rows) > MAX_CHUNKS:
        raise RequestError(
            f"{where} must have at most {MAX_CHUNKS} entries, got {len(rows)}", param=where
        )
    found: list[ChunkPosition] = []
    for number, row in enumerate(rows):
        shape = "[message, start, stop]" if is_chat else "[start, stop]"
        if len(row) != width or min(row) < 0:
            raise RequestError(
                f"{where}[{number}] must be {shape}, got {show(row)}", param=f"{where}[{number}]"
            )
        position = ChunkPosition(row[0] if is_chat else 0, row[-2], row[-1])
        if position.start >= position.stop or (found and not _follows(position, found[-1])):
            raise RequestError(
                f"{where} must ascend without overlaps: {row!r} is out of order", param=where
            )
        found.append(position)
    return found


def _follows(position: ChunkPosition, last: ChunkPosition) -> bool:
    same_message = position.message == last.message
    return position.start >= last.stop if same_message else position.message > last.message
