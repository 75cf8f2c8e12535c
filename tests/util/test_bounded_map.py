"""A mapping bounded by entries, size and age, which evicts the least recently used entry."""

from hypothesis import given
from hypothesis import strategies as st

from ragboost.util.bounded_map import BoundedMap


def test_the_least_recently_used_entry_is_evicted_first() -> None:
    entries: BoundedMap[str, int] = BoundedMap(max_entries=2)
    entries.put("a", 1)
    entries.put("b", 2)

    assert entries.get("a") == 1
    entries.put("c", 3)

    assert list(entries) == ["a", "c"]
    assert entries.values() == [1, 3]
    assert entries.get("b") is None


def test_peeking_does_not_count_as_use() -> None:
    entries: BoundedMap[str, int] = BoundedMap(max_entries=2)
    entries.put("a", 1)
    entries.put("b", 2)

    assert entries.peek("a") == 1
    entries.put("c", 3)

    assert "a" not in entries


def test_an_entry_larger_than_the_bound_is_not_kept() -> None:
    entries: BoundedMap[str, int] = BoundedMap(max_entries=9, max_size=10)
    entries.put("a", 1, size=4)
    entries.put("b", 2, size=11)

    assert len(entries) == entries.size == 0


def test_an_entry_expires_after_its_last_use() -> None:
    now = 0.0
    entries: BoundedMap[str, int] = BoundedMap(max_entries=9, ttl_s=10, clock=lambda: now)
    entries.put("a", 1, size=3)
    entries.put("b", 2, size=4)
    now = 8.0
    assert entries.get("a") == 1
    now = 12.0

    assert entries.get("b") is None
    assert entries.get("a") == 1
    assert entries.size == 3


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdef"), st.sampled_from(["put", "get", "pop"]), st.integers(0, 6)
        )
    ),
    st.integers(1, 4),
    st.integers(0, 12),
)
def test_bounds_hold_after_every_operation(
    operations: list[tuple[str, str, int]], max_entries: int, max_size: int
) -> None:
    entries: BoundedMap[str, int] = BoundedMap(max_entries=max_entries, max_size=max_size)
    model: list[tuple[str, int]] = []
    for key, operation, size in operations:
        known = [entry for entry in model if entry[0] == key]
        if operation == "put":
            entries.put(key, size, size=size)
            model = [entry for entry in model if entry[0] != key] + [(key, size)]
            while len(model) > max_entries or sum(each for _, each in model) > max_size:
                del model[0]
        elif operation == "get":
            assert entries.get(key) == (known[0][1] if known else None)
            model = [entry for entry in model if entry[0] != key] + known
        else:
            assert entries.pop(key) == (known[0][1] if known else None)
            model = [entry for entry in model if entry[0] != key]

        assert list(entries) == [each for each, _ in model]
        assert entries.size == sum(each for _, each in model)
