"""The folders that `make test` leaves out exist, and hold none of what it must keep."""

from tests.conftest import PROCESS_TESTS, TESTS

# Invariants, and what they rest on: never left to the longer run.
KEPT = (
    *("fuzz", "requests", "proxy/sessions", "index", "dedup", "ordering", "booster"),
    *("cache_sync", "proxy/conversations", "proxy/upstream", "proxy/routes"),
    *("chunk_cache", "engine/test_exactness.py", "test_imports.py"),
)


def test_the_tests_that_start_processes_exist() -> None:
    assert [name for name in PROCESS_TESTS if not (TESTS / name).exists()] == []


def test_what_make_test_keeps_exists_and_is_not_left_out() -> None:
    for name in KEPT:
        assert (TESTS / name).exists(), name
        assert not any((TESTS / name).is_relative_to(TESTS / left) for left in PROCESS_TESTS), name
