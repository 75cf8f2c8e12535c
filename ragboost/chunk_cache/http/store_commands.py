"""List, pin, evict and expire stored chunks, as an API server asks the engine. A tenant reaches the
chunks whose keys begin with its name's digest, and no others."""

import heapq
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.options import FIELD
from ragboost.chunk_cache.core.request import MIN_CHUNK_TOKENS, namespaced
from ragboost.chunk_cache.http.reports import ReplyTo
from ragboost.chunk_cache.store.keys import chunk_of, keys_of, owner_prefix
from ragboost.chunk_cache.store.retention import Retention
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import RequestError

MAX_KEYS = 1000
"""Maximum chunks of one command, and of one answer."""
Action = Literal["list", "pin", "unpin", "evict", "expire"]
Key = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{48}\Z")]
Token = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_FIELD = f"{FIELD}.store"


class StoreOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    action: Action = "list"
    keys: Annotated[list[Key], msgspec.Meta(max_length=MAX_KEYS)] = []
    ttl_s: Annotated[float, msgspec.Meta(ge=0)] | None = None  # `expire`; None: never
    after: Annotated[str, msgspec.Meta(max_length=48)] = ""  # `list`: keys behind this one
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_KEYS)] = MAX_KEYS


class StoreCommand(msgspec.Struct, frozen=True, tag="store"):
    """A command of an API server; without `options` it asks for the state of all places."""

    reply_to: ReplyTo
    options: StoreOptions | None = None
    # Token ids of the chunks meant, beside `options.keys`; none: it was not found.
    chunks: list[list[Token]] = []
    tenant: str = ""
    namespace: list[str | None] = []


def read_store_options(extension: Mapping[str, Any]) -> StoreOptions:
    try:
        options = msgspec.convert(extension.get("store") or {}, StoreOptions)
    except msgspec.ValidationError as error:
        raise RequestError(f"{_FIELD}: {error}", param=_FIELD) from None
    if options.ttl_s is not None and not math.isfinite(options.ttl_s):
        raise RequestError(f"{_FIELD}.ttl_s must be a number of seconds", param=_FIELD)
    return options


def run_command(
    command: StoreCommand, library: ChunkLibrary, retention: Retention | None
) -> dict[str, Any]:
    """Carry out a command in the engine's process; without `retention` the store is elsewhere."""
    store, options = library.store, command.options
    if retention is None or not isinstance(store, TieredStore):
        return {"error": "several_workers"}
    if options is None:
        stats = [tier._asdict() for tier in store.stats()]
        fill = {"fills": library.num_fills, "fill_seconds": library.fill_seconds}
        return {"tiers": stats, "hits": library.num_hits, "misses": dict(library.misses), **fill}
    tenant = namespaced(command.tenant, *command.namespace)
    owner = owner_prefix(tenant)
    named: list[tuple[str | None, int]] = [(k, 0) for k in options.keys if k.startswith(owner)]
    for tokens in command.chunks:
        is_long = len(tokens) >= MIN_CHUNK_TOKENS
        named.append((library.key(tokens, tenant=tenant) if is_long else None, len(tokens)))
    after = None
    if options.action == "list" and not options.keys and not command.chunks:
        found = {key for each in store.keys(owner) if (key := chunk_of(each)) > options.after}
        named = [(key, 0) for key in heapq.nsmallest(options.limit, found)]
        after = named[-1][0] if len(named) == options.limit else None
    rows = []
    for chunk, count in named:
        is_done = chunk is not None and _act(options, chunk, count, retention)
        rows.append({"key": chunk, "done": is_done, **_describe(chunk or "", store)})
    for row in rows:
        row["expires_s"] = retention.expires_in(row["key"] or "")
        if options.action == "evict":  # no place has it any more
            row["done"] = bool(row["key"]) and not row["places"]
    return {"chunks": rows, "after": after}


def _describe(key: str, store: TieredStore) -> dict[str, Any]:
    """Return where KV of a chunk is, and whether any of it is pinned."""
    places = dict.fromkeys(place for each in keys_of(key) for place in store.places(each))
    return {"places": [*places], "pinned": any(store.is_kept(each) for each in keys_of(key))}


def _act(options: StoreOptions, key: str, num_tokens: int, retention: Retention) -> bool:
    if options.action == "pin":
        return retention.pin(key, num_tokens=num_tokens)
    if options.action == "expire":
        return retention.expire(key, options.ttl_s)
    if options.action == "unpin":
        retention.unpin(key)
    elif options.action == "evict":
        retention.evict(key)
    return True
