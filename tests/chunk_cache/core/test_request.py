"""A request that asks for something impossible is computed exactly, with a reason."""

from typing import Any

import pytest

from ragboost.chunk_cache.core.request import EngineChunkRequest, read_request

DEFAULTS = EngineChunkRequest(policy="epic", ratio=0.3, granularity=4)


def read(told: Any) -> EngineChunkRequest | None:
    return read_request({"ragboost": told}, num_tokens=100, defaults=DEFAULTS)


def test_a_request_without_chunks_is_none_of_our_business() -> None:
    assert read_request(None, num_tokens=100, defaults=DEFAULTS) is None
    assert read_request({"other": 1}, num_tokens=100, defaults=DEFAULTS) is None


def test_fields_that_are_left_out_have_the_servers_defaults() -> None:
    found = read({"version": 1, "chunks": [[0, 10], [10, 40]]})

    assert found == EngineChunkRequest(((0, 10), (10, 40)), "epic", 0.3, 4)


def test_the_fields_of_a_request_beat_the_defaults() -> None:
    told = {"chunks": [[1, 9]], "policy": "a3", "ratio": 0, "granularity": 1, "tenant": "one"}

    assert read(told) == EngineChunkRequest(((1, 9),), "a3", 0.0, 1, "one")


def test_a_request_may_switch_reuse_off_and_still_teach_its_chunks() -> None:
    found = read({"chunks": [[0, 10]], "reuse": False})

    assert found is not None
    assert (found.chunks, found.reason) == (((0, 10),), "reuse_off")


@pytest.mark.parametrize(
    "chunks",
    [
        None,
        "0-10",
        [[0, 10], [9, 20]],
        [[20, 30], [0, 10]],
        [[5, 5]],
        [[-1, 5]],
        [[90, 101]],
        [[0, True]],
        [[0.0, 5.0]],
        [[0, 1, 2]],
        [3],
    ],
)
def test_malformed_positions_are_computed_exactly(chunks: Any) -> None:
    found = read({"chunks": chunks})

    assert found is not None
    assert (found.chunks, found.reason) == ((), "bad_chunks")


@pytest.mark.parametrize(
    "option",
    [
        {"policy": "best"},
        {"policy": "oracle"},
        {"policy": ["a3"]},
        {"ratio": 1.5},
        {"ratio": "0.1"},
        {"ratio": float("nan")},
        {"granularity": -1},
        {"granularity": 1000},
        {"granularity": 1.5},
        {"tenant": 7},
    ],
)
def test_malformed_options_are_computed_exactly(option: dict[str, Any]) -> None:
    found = read({"chunks": [[0, 10]], **option})

    assert found is not None
    assert found.reason == "bad_options"


def test_a_later_version_of_the_contract_is_computed_exactly() -> None:
    found = read({"version": 2, "chunks": [[0, 10]]})

    assert found is not None
    assert found.reason == "unknown_version"


@pytest.mark.parametrize(
    "ratio",
    [pytest.param(10**400, id="huge"), -1, 1.01, float("nan"), float("inf"), "0.1", True],
)
def test_a_ratio_that_is_none_is_computed_exactly(ratio: Any) -> None:
    found = read({"chunks": [[0, 10]], "ratio": ratio})

    assert found is not None
    assert found.reason == "bad_options"


def test_a_tenant_of_any_length_is_computed_exactly() -> None:
    """It is hashed once for each chunk, between two steps of the engine."""
    found = read({"chunks": [[0, 10]], "tenant": "x" * 1_000_000})

    assert found is not None
    assert found.reason == "bad_options"
