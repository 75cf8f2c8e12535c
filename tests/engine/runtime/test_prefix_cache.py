"""The book-keeping of the prefix cache: matching, eviction of leaves, reference counts, events."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from ragboost.cache_events import AllBlocksCleared, BlockRemoved, BlockStored
from ragboost.engine.runtime.prefix_cache import (
    BlockCache,
    CacheBlock,
    block_key,
    event_hash,
)
from tests.kv_integrity import check_blocks

BLOCK_SIZE = 2


def keys_of(tokens: list[int], *, salt: str | None = None) -> list[bytes]:
    keys: list[bytes] = []
    for i in range(0, len(tokens) - len(tokens) % BLOCK_SIZE, BLOCK_SIZE):
        parent = keys[-1] if keys else None
        keys.append(block_key(parent, tokens[i : i + BLOCK_SIZE], salt=salt))
    return keys


def put(cache: BlockCache, tokens: list[int], *, salt: str | None = None) -> list[CacheBlock]:
    """Insert and keep hold of the blocks of `tokens`, as a running request does."""
    keys = keys_of(tokens, salt=salt)
    return cache.insert(keys, tokens, parent=None, salt=salt).blocks


def test_match_returns_the_longest_cached_prefix_of_full_blocks() -> None:
    cache = BlockCache(8, BLOCK_SIZE)
    put(cache, [1, 2, 3, 4])
    assert len(cache.match(keys_of([1, 2, 3, 4, 5, 6]))) == 2
    assert len(cache.match(keys_of([1, 2, 9, 9]))) == 1
    assert cache.match(keys_of([3, 4])) == []


def test_salts_are_namespaces() -> None:
    cache = BlockCache(8, BLOCK_SIZE)
    put(cache, [1, 2, 3, 4], salt="tenant-a")
    assert cache.match(keys_of([1, 2, 3, 4])) == []
    assert cache.match(keys_of([1, 2, 3, 4], salt="tenant-b")) == []
    assert len(cache.match(keys_of([1, 2, 3, 4], salt="tenant-a"))) == 2


def test_least_recently_used_leaf_goes_first() -> None:
    cache = BlockCache(4, BLOCK_SIZE)
    old, new = put(cache, [1, 2, 3, 4]), put(cache, [5, 6, 7, 8])
    cache.release(old)
    cache.release(new)
    cache.acquire(cache.match(keys_of([1, 2])))  # the root of `old` is used again
    put(cache, [9, 9])
    assert len(cache.match(keys_of([1, 2, 3, 4]))) == 1, "the leaf goes, its parent stays"
    put(cache, [8, 8])
    assert len(cache.match(keys_of([5, 6, 7, 8]))) == 1


def test_held_blocks_are_never_evicted() -> None:
    cache = BlockCache(2, BLOCK_SIZE)
    held = put(cache, [1, 2, 3, 4])
    assert put(cache, [5, 6]) == []
    cache.release(held)
    assert len(put(cache, [5, 6])) == 1
    check_blocks(cache)


def test_insert_stores_what_fits() -> None:
    cache = BlockCache(2, BLOCK_SIZE)
    assert len(put(cache, [1, 2, 3, 4, 5, 6])) == 2
    (event,) = cache.take_events()
    assert isinstance(event, BlockStored)
    assert event.block_hashes == [event_hash(key) for key in keys_of([1, 2, 3, 4])]
    assert (event.parent_block_hash, event.token_ids) == (None, [1, 2, 3, 4])
    assert (event.extra_keys, event.session_id) == ([None, None], None)


def test_evicting_0_does_nothing() -> None:
    cache = BlockCache(2, BLOCK_SIZE)
    cache.release(put(cache, [1, 2]))
    assert cache.evict(0) == 0
    assert cache.evict(5) == 1


def test_blocks_dropped_by_clear_may_still_be_released_and_are_no_parents() -> None:
    cache = BlockCache(4, BLOCK_SIZE)
    held = put(cache, [1, 2])
    cache.clear()
    keys = keys_of([1, 2, 3, 4])
    assert cache.insert(keys[1:], [3, 4], parent=held[0]).blocks == []
    cache.release(held)
    assert len(put(cache, [1, 2, 3, 4])) == 2
    assert isinstance(cache.take_events()[1], AllBlocksCleared)
    check_blocks(cache)


class PrefixCacheMachine(RuleBasedStateMachine):
    """Random requests on a small cache, with a mirror that only sees the events."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(6, BLOCK_SIZE)
        self.running: list[list[CacheBlock]] = []
        self.mirror: set[object] = set()
        self.keys: dict[object, bytes] = {}  # of all blocks so far, by their names in events

    @rule(
        target=requests,
        tokens=st.lists(st.integers(0, 2), max_size=14),
        salt=st.sampled_from([None, "a"]),
    )
    def start(self, tokens: list[int], salt: str | None) -> list[CacheBlock]:
        """Match, hold, then store the rest, as the engine does."""
        keys = keys_of(tokens, salt=salt)
        self.keys |= {event_hash(key): key for key in keys}
        held = self.cache.match(keys)
        self.cache.acquire(held)
        num_matched = len(held)
        inserted = self.cache.insert(
            keys[num_matched:],
            tokens[num_matched * BLOCK_SIZE : len(keys) * BLOCK_SIZE],
            parent=held[-1] if held else None,
            salt=salt,
        )
        held = [*held, *inserted.blocks]
        self.running.append(held)
        return held

    @rule(held=requests)
    def finish(self, held: list[CacheBlock]) -> None:
        if any(held is other for other in self.running):
            self.running = [other for other in self.running if other is not held]
            self.cache.release(held)

    @rule(num_blocks=st.integers(0, 4))
    def evict(self, num_blocks: int) -> None:
        before = len(self.cache)
        assert before - self.cache.evict(num_blocks) == len(self.cache)

    @rule()
    def clear(self) -> None:
        for held in self.running:
            self.cache.release(held)
        self.running.clear()
        self.cache.clear()

    @invariant()
    def everything_holds(self) -> None:
        check_blocks(self.cache)
        assert len(self.cache) <= 6
        for held in self.running:
            assert all(self.cache.holds(block) for block in held), "a held block was evicted"

    @invariant()
    def events_tell_exactly_what_is_cached(self) -> None:
        for event in self.cache.take_events():
            match event:
                case BlockStored():
                    parent = event.parent_block_hash
                    assert parent is None or parent in self.mirror
                    assert self.mirror.isdisjoint(event.block_hashes)
                    self.mirror.update(event.block_hashes)
                case BlockRemoved():
                    self.mirror.remove(event.block_hashes[0])
                case AllBlocksCleared():
                    self.mirror.clear()
        assert len(self.mirror) == len(self.cache)
        assert all(self.cache.match([self.keys[name]]) for name in self.mirror)


TestPrefixCacheMachine = PrefixCacheMachine.TestCase
TestPrefixCacheMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
