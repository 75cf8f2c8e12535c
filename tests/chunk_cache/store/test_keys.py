"""Everything that decides KV is in its key."""

from dataclasses import replace

import pytest

from ragboost.chunk_cache.store.keys import Identity, PrefixDigests, chunk_key, tokens_digest

IDENTITY = Identity(model="m", dtype="float32")


@pytest.mark.parametrize(
    "change",
    [
        {"identity": replace(IDENTITY, model="other")},
        {"identity": replace(IDENTITY, dtype="bfloat16")},
        {"identity": replace(IDENTITY, recipe="primed")},
        {"identity": replace(IDENTITY, salt="tenant")},
        {"identity": replace(IDENTITY, rank="1/2")},
        {"regime": "other"},
        {"tokens": (3, 4)},
    ],
)
def test_everything_that_decides_kv_is_in_the_key(change: dict[str, object]) -> None:
    base: dict[str, object] = {
        "identity": IDENTITY,
        "regime": "r",
        "tokens": (4, 5),
    }
    assert chunk_key(**base) != chunk_key(**{**base, **change})  # type: ignore[arg-type]
    assert chunk_key(**base) == chunk_key(**base)  # type: ignore[arg-type]


def test_keys_stay_those_of_kv_on_disk() -> None:
    identity = Identity("model", "float32", "recipe", "salt")
    key = chunk_key(identity, regime="regime", tokens=[2, 3])
    assert key == "10bd451671f5fe56d178c57ee0228e22af6080e6cea15b40"


def test_digests_of_beginnings_are_those_of_the_tokens_alone_in_any_order() -> None:
    tokens = list(range(100, 150))
    prompt = PrefixDigests(tokens)

    for stop in (0, 7, 7, 50, 3, 20):
        assert prompt.digest(stop) == tokens_digest(tokens[:stop])
    assert len({tokens_digest(tokens[:stop]) for stop in range(51)}) == 51
