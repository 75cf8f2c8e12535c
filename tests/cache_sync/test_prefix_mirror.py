"""The mirror against golden frames and against a cache that evicts at random."""

import gc
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.cache_events import (
    APPROXIMATE,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    decode_batch,
)
from ragboost.cache_sync.mirror_block import MirrorBlock
from ragboost.cache_sync.prefix_mirror import Changes, PrefixMirror
from tests.cache_sync.toy import ToyCache
from tests.test_cache_events import frames


def stored(
    hashes: list[int], tokens: Iterable[int], *, parent: int | None = None, **fields: object
) -> BlockStored:
    ids = list(tokens)
    size = len(ids) // len(hashes)
    return BlockStored(
        block_hashes=hashes, parent_block_hash=parent, token_ids=ids, block_size=size, **fields
    )


def removed(*hashes: int, medium: str | None = "GPU") -> BlockRemoved:
    return BlockRemoved(block_hashes=list(hashes), medium=medium)


def apply(mirror: PrefixMirror, *events: Event) -> Changes:
    changes = mirror.apply(EventBatch(ts=1.0, events=events))
    mirror.check_integrity()
    return changes


def empty(**limits: int) -> PrefixMirror:
    mirror = PrefixMirror(**limits)
    mirror.clear(is_partial=False)
    return mirror


@pytest.mark.parametrize("name", ["vllm-0.32.0", "sglang-0.5.23"])
def test_golden_frames_leave_what_the_engine_held(name: str) -> None:
    mirror = empty()
    resident = []
    for payload in frames(name):
        apply_batch = mirror.apply(decode_batch(payload))
        mirror.check_integrity()
        resident.append(mirror.num_resident_tokens)
        assert not mirror.is_partial, apply_batch
    if name == "vllm-0.32.0":
        assert resident[:2] == [128, 160]
        assert resident[-1] == 128  # cleared, then one prompt of four blocks
        assert mirror.match_tokens(list(range(1300, 1428))) == 128
    else:
        assert resident[:2] == [144, 192]
        assert resident[-2:] == [0, 144]
        assert mirror.match_tokens(list(range(1300, 1400))) == 96
    assert mirror.match_tokens([1, *range(1300, 1428)]) == 0


def test_a_salted_prompt_is_found_only_with_its_salt() -> None:
    mirror = empty()
    for payload in frames("vllm-0.32.0")[:3]:
        mirror.apply(decode_batch(payload))
    tokens = list(range(700, 828))
    assert mirror.match_tokens(tokens, cache_salt="tenant-a") == 128
    assert mirror.match_tokens(tokens) == 0
    assert mirror.match_tokens(tokens, lora_name="tenant-a") == 0


def test_sglang_salt_and_lora_name_are_namespaces() -> None:
    mirror = empty()
    apply(mirror, stored([1], [5, 6], cache_salt="s", lora_name="a"))
    assert mirror.match_tokens([5, 6], lora_name="a", cache_salt="s") == 2
    assert mirror.match_tokens([5, 6], lora_name="a") == 0
    assert mirror.match_tokens([5, 6]) == 0


def test_multimodal_ids_keep_equal_placeholder_tokens_apart() -> None:
    mirror = empty()
    apply(mirror, stored([1], [5, 6], extra_keys=[[["image-hash", 0]]]))
    assert mirror.match_tokens([5, 6]) == 0
    assert len(mirror) == 1


def test_a_block_stored_twice_stays_until_it_is_removed_twice() -> None:
    mirror = empty()
    apply(mirror, stored([1], [5, 6]), stored([1], [5, 6]))
    apply(mirror, removed(1))
    assert mirror.match_tokens([5, 6]) == 2
    apply(mirror, removed(1))
    assert (mirror.match_tokens([5, 6]), len(mirror)) == (0, 0)


def test_a_chain_of_an_unknown_parent_is_left_out_and_makes_the_mirror_partial() -> None:
    mirror = empty()
    apply(mirror, stored([2], [7, 8], parent=1, session_id="r"))
    assert mirror.match_tokens([7, 8]) == 0
    assert mirror.resident_tokens("r") is None
    assert (mirror.is_partial, len(mirror)) == (True, 0)
    apply(mirror, AllBlocksCleared(), stored([2], [7, 8]))
    assert (mirror.is_partial, mirror.match_tokens([7, 8])) == (False, 2)


def test_blocks_behind_a_removed_one_count_again_when_it_returns() -> None:
    mirror = empty()
    apply(mirror, stored([1, 2, 3], range(6), session_id="a"))
    changes = apply(mirror, removed(2))
    assert changes.resident_tokens == {"a": 2}
    assert mirror.match_tokens(range(6)) == 2
    apply(mirror, stored([2], [2, 3], parent=1, session_id="b"))
    assert mirror.match_tokens(range(6)) == 6
    assert mirror.resident_tokens("b") == 4


def test_a_request_is_followed_through_chunks_and_shared_prefixes() -> None:
    mirror = empty()
    apply(mirror, stored([1, 2], range(4), session_id="a"))
    changes = apply(mirror, stored([3], [4, 5], parent=2, session_id="a"))
    assert changes == Changes({"a": 6})
    apply(mirror, stored([4], [9, 9], parent=2, session_id="b"))
    assert (mirror.resident_tokens("a"), mirror.resident_tokens("b")) == (6, 6)
    changes = apply(mirror, removed(2))
    assert changes.resident_tokens == {"a": 2, "b": 2}
    changes = apply(mirror, removed(1))
    assert changes.resident_tokens == {"a": 0, "b": 0}
    assert mirror.resident_tokens("a") is None


def test_clearing_forgets_every_request_and_says_so() -> None:
    mirror = empty()
    apply(mirror, stored([1], [5, 6], session_id="a"))
    changes = apply(mirror, AllBlocksCleared(), stored([2], [7, 8], session_id="b"))
    assert changes == Changes({"b": 2}, is_cleared=True)
    assert mirror.resident_tokens("a") is None


def test_copies_on_other_media_are_no_prefix_hits_and_leave_the_mirror_exact() -> None:
    mirror = empty()
    apply(mirror, stored([1, 2], range(4)))
    apply(mirror, BlockStored(block_hashes=[1, 2], block_size=2, medium="CPU"))
    apply(mirror, removed(1, medium="CPU"))
    assert mirror.match_tokens(range(4)) == 4
    apply(mirror, removed(1, 2), removed(1, 2, medium="CPU"))
    assert (mirror.match_tokens(range(4)), len(mirror), mirror.is_partial) == (0, 0, False)
    apply(mirror, BlockStored(block_hashes=[8], block_size=2, medium="CPU"))
    apply(mirror, stored([1, 2], range(4)))
    assert (mirror.match_tokens(range(4)), mirror.is_partial) == (4, False)


def test_only_the_first_full_attention_group_counts() -> None:
    mirror = empty()
    window = stored([1], [5, 6], group_idx=0, kv_cache_spec_kind="sliding_window")
    full = stored([1], [5, 6], group_idx=1, kv_cache_spec_kind="full_attention")
    other = stored([1], [5, 6], group_idx=2, kv_cache_spec_kind="full_attention")
    apply(mirror, window, full, other)
    apply(mirror, BlockRemoved(block_hashes=[1], medium="GPU", group_idx=0))
    assert mirror.match_tokens([5, 6]) == 2
    apply(mirror, BlockRemoved(block_hashes=[1], medium="GPU", group_idx=1))
    assert (mirror.match_tokens([5, 6]), mirror.is_partial) == (0, False)


def sparse(block_hash: int, tokens: Iterable[int], group: int, **fields: object) -> BlockStored:
    """The event of a Mamba group: one hash for all blocks of tokens."""
    ids = list(tokens)
    return BlockStored(
        block_hashes=[block_hash], token_ids=ids, block_size=2, group_idx=group, **fields
    )


@pytest.mark.parametrize("is_first", [False, True])
def test_groups_without_a_kind_are_judged_by_their_hashes(is_first: bool) -> None:
    mirror = empty()
    full = stored([1, 2, 3], range(6), group_idx=3)
    others = [sparse(3, range(6), group) for group in (0, 1)]
    apply(mirror, *((full, *others) if not is_first else (*others, full)))
    assert (mirror.match_tokens(range(6)), mirror.is_partial) == (6, False)
    apply(mirror, BlockRemoved(block_hashes=[3], medium="GPU", group_idx=0))
    assert mirror.match_tokens(range(6)) == 6
    apply(mirror, BlockRemoved(block_hashes=[3], medium="GPU", group_idx=3))
    assert mirror.match_tokens(range(6)) == 4


def test_a_group_whose_first_events_had_one_block_is_given_up_when_a_later_one_is_sparse() -> None:
    mirror = empty()
    apply(mirror, stored([1], range(2), group_idx=0, session_id="r"))
    assert mirror.match_tokens(range(2)) == 2
    changes = apply(mirror, sparse(9, range(6), 0), stored([4, 5], range(4), group_idx=1))
    assert changes.resident_tokens == {"r": 0}
    assert (mirror.match_tokens(range(6)), mirror.is_partial) == (4, True)


@pytest.mark.parametrize(
    "event",
    [
        removed(9),
        stored([7], [1, 2, 3]).__class__(block_hashes=[7], token_ids=[1, 2, 3], block_size=2),
        stored([1], [5, 6], parent=2),
        BlockStored(block_hashes=[8], block_size=2, medium="GPU"),
    ],
    ids=["never stored", "token count", "second place", "an unknown block without tokens"],
)
def test_an_event_that_cannot_be_true_makes_the_mirror_partial(event: Event) -> None:
    mirror = empty()
    apply(mirror, stored([1, 2], range(4)))
    assert not mirror.is_partial
    apply(mirror, event)
    assert (mirror.is_partial, mirror.num_unknown) == (True, 1)


def test_limits_bound_blocks_requests_and_namespaces() -> None:
    mirror = empty(max_blocks=3, max_requests=2)
    apply(mirror, stored([1, 2, 3, 4], range(8), session_id="a"))
    assert (len(mirror), mirror.is_partial, mirror.match_tokens(range(8))) == (3, True, 6)
    mirror = empty(max_requests=2)
    for i in range(5):
        apply(mirror, stored([i], [i, i], cache_salt=f"tenant-{i}", session_id=str(i)))
    assert mirror.num_requests == 2
    assert mirror.resident_tokens("4") == 2
    apply(mirror, removed(*range(5)))
    assert len(mirror) == 0
    mirror.check_integrity()


def test_chains_beyond_the_limit_and_odd_ones_are_counted_as_unknown() -> None:
    mirror = empty(max_blocks=1)
    apply(mirror, stored([1], [1, 1]))
    for i in range(5):
        apply(mirror, stored([10 + i], [2, 2], cache_salt=f"tenant-{i}"))
    apply(mirror, stored([20], [2, 2, 2], cache_salt="odd length"))
    assert (len(mirror), mirror.num_unknown) == (1, 6)
    mirror.check_integrity()


DOCUMENTS = [[100 * i + j for j in range(4 + 3 * (i % 3))] for i in range(6)]
STEP = st.one_of(
    st.tuples(
        st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True),
        st.sampled_from(["", "", "tenant"]),
        st.integers(0, 2),
    ),
    st.none(),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=40), st.booleans(), st.integers(6, 24))
def test_the_mirror_equals_the_cache_after_any_events(
    steps: list[tuple[list[int], str, int] | None], is_shared: bool, num_blocks: int
) -> None:
    cache, mirror = ToyCache(num_blocks=num_blocks, is_shared=is_shared), empty()
    prompts: dict[str, tuple[list[int], str]] = {}
    known: dict[str, int] = {}
    for number, step in enumerate(steps):
        if step is None:
            cache.clear()
        else:
            tokens = [token for i in step[0] for token in DOCUMENTS[i]]
            prompts[str(number)] = (tokens, step[1])
            cache.run(tokens, str(number), salt=step[1], again=step[2])
        changes = mirror.apply(cache.take())
        mirror.check_integrity()
        if changes.is_cleared:
            known.clear()
        known |= changes.resident_tokens
        for request, (tokens, salt) in prompts.items():
            truth = cache.cached_tokens(tokens, salt=salt)
            assert mirror.match_tokens(tokens, cache_salt=salt or None) == truth
            told = mirror.resident_tokens(request)
            assert (told or 0) <= truth  # a request that hits all of another's blocks has no event
            assert known.get(request, 0) == (told or 0)
        assert not mirror.is_partial


def test_withdrawn_blocks_are_no_hit_and_leave_the_mirror_exact() -> None:
    mirror = empty()
    prompt = list(range(48))
    withdrawn = removed(70, medium=APPROXIMATE)

    apply(mirror, stored([1], prompt[:16]), stored([70, 71], prompt[16:], parent=1), withdrawn)
    assert mirror.match_tokens(prompt) == 16

    apply(mirror, stored([2, 3], prompt[16:], parent=1))  # the same tokens, computed exactly
    assert mirror.match_tokens(prompt) == 48

    apply(mirror, withdrawn, removed(71), removed(70), withdrawn)  # used again, then evicted
    assert mirror.match_tokens(prompt) == 48
    assert not mirror.is_partial


@pytest.mark.parametrize("per_batch", [1, 3, 1000])
@pytest.mark.parametrize("is_placed", [False, True], ids=["", "requests at the end"])
def test_the_work_of_events_is_linear_whatever_they_take_turns_at(
    monkeypatch: pytest.MonkeyPatch, per_batch: int, is_placed: bool
) -> None:
    reads = 0

    class CountedBlock(MirrorBlock):
        __slots__ = ()

        def __getattribute__(self, name: str) -> object:
            nonlocal reads
            reads += name == "is_reachable"
            return super().__getattribute__(name)

    monkeypatch.setattr("ragboost.cache_sync.prefix_mirror.MirrorBlock", CountedBlock)
    mirror = empty()
    size = 4000
    chain = [
        stored([i], [i], parent=i - 1 if i else None, session_id=f"request {i}")
        for i in range(size)
    ]
    mirror.apply(EventBatch(ts=1.0, events=tuple(chain)))
    events: list[Event] = []
    for turn in range(size // 2):
        last = stored([size - 1], [size - 1], parent=size - 2, session_id=f"last {turn}")
        events += [removed(0), *([last] if is_placed else []), stored([0], [0], session_id="first")]
    events.append(removed(0))
    known: dict[str, int] = {}
    for at in range(0, len(events), per_batch):
        known |= mirror.apply(
            EventBatch(ts=1.0, events=tuple(events[at : at + per_batch]))
        ).resident_tokens
    known |= mirror.settle().resident_tokens
    assert reads < 250 * len(events)
    assert set(known.values()) == {0}
    mirror.check_integrity()


def test_blocks_are_freed_without_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        mirror = empty()
        others = blocks()  # its root, and those of other tests; kept, so that none is freed
        for i in range(20):
            apply(mirror, stored([i, i + 100], [i, 1, 2, 3]))
            apply(mirror, stored([i + 200], [4, 5], parent=i), stored([i + 300], [6, 7], parent=i))
        apply(mirror, removed(*range(10), *range(210, 220)))
        assert len(blocks()) > len(others) + 60
        mirror.clear(is_partial=False)
        assert len(blocks()) == len(others)
    finally:
        gc.enable()


def blocks() -> list[MirrorBlock]:
    return [each for each in gc.get_objects() if type(each) is MirrorBlock]
