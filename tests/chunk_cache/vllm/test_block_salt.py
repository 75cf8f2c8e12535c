"""Approximate blocks have hashes of their own; exact blocks keep theirs."""

import hashlib
from collections.abc import Callable

import pytest

from ragboost.chunk_cache.vllm.compat import BlockSalt, Hasher, check_salting
from ragboost.errors import ChunkCacheError

SIZE = 4


class Request:
    """Hashes its full blocks in chains, as vLLM's request does."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.block_hashes: list[bytes] = []
        self._block_hasher: Callable[[Request], list[bytes]] | None = chain
        self.update_block_hashes()

    def update_block_hashes(self) -> None:
        if self._block_hasher is not None:
            self.block_hashes.extend(self._block_hasher(self))

    def append(self, tokens: list[int]) -> None:
        self.tokens = self.tokens + tokens
        self.update_block_hashes()


def chain(request: Request) -> list[bytes]:
    found: list[bytes] = []
    known = len(request.block_hashes)
    parent = request.block_hashes[-1] if known else b""
    for start in range(known * SIZE, len(request.tokens) - SIZE + 1, SIZE):
        block = repr(request.tokens[start : start + SIZE]).encode()
        parent = hashlib.sha256(parent + block).digest()
        found.append(parent)
    return found


def plain(num_tokens: int) -> list[bytes]:
    return Request(list(range(num_tokens))).block_hashes


def test_blocks_before_the_first_approximate_one_are_shared() -> None:
    request = Request(list(range(20)))

    BlockSalt(request, 2, salt=b"a").apply()

    assert request.block_hashes[:2] == plain(20)[:2]
    assert not set(request.block_hashes[2:]) & set(plain(20))
    assert len(request.block_hashes) == 5


def test_an_approximate_block_that_generated_tokens_complete_is_salted() -> None:
    request = Request(list(range(10)))

    BlockSalt(request, 2, salt=b"a").apply()
    assert request.block_hashes == plain(10)
    for token in range(10, 20):
        request.append([token])

    assert request.block_hashes[:2] == plain(20)[:2]
    assert not set(request.block_hashes[2:]) & set(plain(20))
    assert len(request.block_hashes) == 5


def test_equal_salts_share_and_different_ones_do_not() -> None:
    first, again, other = (Request(list(range(20))) for _ in range(3))

    BlockSalt(first, 1, salt=b"a").apply()
    BlockSalt(again, 1, salt=b"a").apply()
    BlockSalt(other, 1, salt=b"b").apply()

    assert first.block_hashes == again.block_hashes
    assert not set(first.block_hashes[1:]) & set(other.block_hashes[1:])


def test_salting_from_an_earlier_block_on_takes_the_place_of_the_first() -> None:
    request, wanted = Request(list(range(20))), Request(list(range(20)))

    BlockSalt(request, 3, salt=b"a").apply()
    BlockSalt(request, 1, salt=b"a").apply()
    BlockSalt(wanted, 1, salt=b"a").apply()

    assert request.block_hashes == wanted.block_hashes


def test_nothing_is_salted_without_a_prefix_cache() -> None:
    request = Request(list(range(20)))
    request._block_hasher = None
    request.block_hashes.clear()

    BlockSalt(request, 0, salt=b"a").apply()

    assert request.block_hashes == []


def test_blocks_get_their_plain_hashes_back_and_are_salted_again_alike() -> None:
    request = Request(list(range(20)))
    salt = BlockSalt(request, 2, salt=b"a")
    salt.apply()
    salted = list(request.block_hashes)

    salt.remove()
    assert request.block_hashes == plain(20)
    salt.apply()
    assert request.block_hashes == salted
    salt.remove()
    request.append(list(range(20, 28)))

    assert request.block_hashes == plain(28)


def test_a_salt_over_another_one_gives_that_back() -> None:
    request = Request(list(range(20)))
    BlockSalt(request, 3, salt=b"a").apply()
    salted = list(request.block_hashes)
    earlier = BlockSalt(request, 1, salt=b"a")

    earlier.apply()
    earlier.remove()

    assert request.block_hashes == salted


class HashingRequest:
    """A request that asks the hasher of this name for the hashes of its blocks."""

    asked = "_block_hasher"

    def __init__(self, tokens: list[int], hasher: Hasher) -> None:
        self.all_token_ids, self.block_hashes = list(tokens), list[bytes]()
        self._block_hasher = self._hasher = hasher
        self.update_block_hashes()

    def update_block_hashes(self) -> None:
        self.block_hashes.extend(getattr(self, self.asked)(self))


def test_requests_that_hash_as_they_are_told_pass_the_check() -> None:
    check_salting(HashingRequest)


def test_reuse_stays_off_where_requests_keep_their_hasher_elsewhere() -> None:
    """Approximate blocks would have the hashes of exact ones."""

    class Moved(HashingRequest):
        asked = "_hasher"

    with pytest.raises(ChunkCacheError, match="does not hash the blocks"):
        check_salting(Moved)
