"""List, pin and evict stored chunks, as an API server asks the engine. A tenant reaches the chunks
whose keys begin with its name's digest, and no others."""

import heapq
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.request import FIELD, MIN_CHUNK_TOKENS, namespaced
from ragboost.chunk_cache.http.reports import ReplyTo
from ragboost.chunk_cache.store.keys import chunk_of, keys_of, owner_prefix
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import RequestError

MAX_KEYS = 1000
"""Maximum chunks of one command, and of one answer."""
Action = Literal["list", "pin", "unpin", "evict"]
Key = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{48}\Z")]
Token = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_FIELD = f"{FIELD}.store"


class StoreOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    action: Action = "list"
    keys: Annotated[list[Key], msgspec.Meta(max_length=MAX_KEYS)] = []
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
        return msgspec.convert(extension.get("store") or {}, StoreOptions)
    except msgspec.ValidationError as error:
        raise RequestError(f"{_FIELD}: {error}", param=_FIELD) from None


def run_command(command: StoreCommand, library: ChunkLibrary) -> dict[str, Any]:
    store, options = library.store, command.options
    if not store.takes_commands:
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
    done = _act(options.action, {key: count for key, count in named if key}, store)
    rows = [{"key": key, "done": key in done, **_describe(key or "", store)} for key, _ in named]
    for row in rows:
        if options.action == "evict":  # no place has it any more
            row["done"] = bool(row["key"]) and not row["places"]
    return {"chunks": rows, "after": after}


def _describe(key: str, store: TieredStore) -> dict[str, Any]:
    places = dict.fromkeys(place for each in keys_of(key) for place in store.places(each))
    return {"places": [*places], "pinned": any(store.is_kept(each) for each in keys_of(key))}


def _act(action: Action, chunks: Mapping[str, int], store: TieredStore) -> set[str]:
    """Act on all KV of chunks, by key with their tokens; return those for which it is done."""
    stored = {key: [each for each in keys_of(key) if each in store] for key in chunks}
    if action == "pin":
        kept = store.pin({each: chunks[key] for key, own in stored.items() for each in own})
        return {key for key, own in stored.items() if own and kept.issuperset(own)}
    for key in chunks if action in ("unpin", "evict") else ():
        for each in keys_of(key):
            (store.release if action == "unpin" else store.discard)(each)
    return {*chunks}
