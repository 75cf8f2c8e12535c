"""Keys of chunk KV: digests of everything the KV was computed from."""

import hashlib
import json
import re
from array import array
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Literal

from ragboost.errors import ChunkCacheError

LAYOUT_VERSION = 3
"""Version of the meaning of stored KV; older KV has other keys and is not found."""

PUBLIC = "public"
"""Salt of documents that all tenants may read. Tenants' own are digests, or empty."""
_OWNER_DIGITS = 16
_BEHIND = "-behind"
Place = Literal["first", "behind", "alone"]
"""Which KV of a chunk a prompt prefers: `first` among its chunks that of the first place, `behind`
others that computed behind others; `alone`: it takes no other than that of the first place."""
_KEY = re.compile(r"[A-Za-z0-9 _-]{1,128}")


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything besides the tokens that determines the KV of a chunk."""

    model: str  # digest of the weights, such as `ModelAdapter.fingerprint()`
    dtype: str = ""  # dtype of the KV
    recipe: str = ""  # preparation of the chunk, such as its neighbours; empty for plain KV
    salt: str = ""  # tenant whose KV is not shared with others; empty for none
    rank: str = ""  # whose heads the KV has, of several ranks; empty for one


class PrefixDigests:
    """Digests of the beginnings of one prompt; in ascending order they take one pass."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = array("q", tokens)
        self._hash, self._end = hashlib.sha256(), 0

    def digest(self, stop: int) -> str:
        if stop < self._end:
            self._hash, self._end = hashlib.sha256(), 0
        self._hash.update(self._tokens[self._end : stop])
        self._end = stop
        return self._hash.hexdigest()[:32]


def tokens_digest(tokens: Sequence[int]) -> str:
    return PrefixDigests(tokens).digest(len(tokens))


def chunk_key(identity: Identity, *, regime: str, tokens: Sequence[int]) -> str:
    """Return the key of a chunk (48 hex digits), which begins with its owner's."""
    made_from = [LAYOUT_VERSION, astuple(identity), regime, [int(token) for token in tokens]]
    digest = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:32]
    return owner_prefix(identity.salt) + digest


def behind_key(key: str) -> str:
    """Return the key of a chunk's KV that was computed behind other chunks, by the chunk's key."""
    return key + _BEHIND


def chunk_of(key: str) -> str:
    return key.removesuffix(_BEHIND)


def place_of(number: int) -> Place:
    """Return which KV the chunk of this number prefers in its prompt."""
    return "behind" if number else "first"


def keys_of(chunk: str, place: Place = "first") -> list[str]:
    """Return the keys of the KV that a chunk may have, the preferred first."""
    keys = [chunk, behind_key(chunk)]
    return {"first": keys, "behind": keys[::-1], "alone": keys[:1]}[place]


def owner_of(key: str) -> str:
    return key[:_OWNER_DIGITS]


def owner_prefix(salt: str) -> str:
    """Return what the keys of one tenant begin with (16 hex digits)."""
    return owner_of(hashlib.sha256(b"owner" + salt.encode("utf-8", "surrogatepass")).hexdigest())


def check_key(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ChunkCacheError(f"{key!r} is not the key of a chunk")
    return key
