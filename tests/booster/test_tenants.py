"""Tenants are bounded, and users are told apart by their credentials."""

from pathlib import Path

import pytest

from ragboost.booster.tenants import TenantKey, Tenants
from ragboost.config import Settings
from ragboost.errors import ConfigError
from ragboost.rewriting.headers import user_of


def test_the_least_recently_used_tenants_are_evicted_first() -> None:
    tenants = Tenants(Settings(proxy={"max_tenants": 2}))  # type: ignore[arg-type]
    first = tenants.get(TenantKey("a", ""))
    tenants.get(TenantKey("b", ""))
    assert tenants.get(TenantKey("a", "")) is first
    tenants.get(TenantKey("c", ""))
    assert (len(tenants), tenants.get(TenantKey("a", "")) is first) == (2, True)


def test_users_are_told_apart_by_all_their_credentials() -> None:
    headers = [
        [],
        [(b"authorization", b"a")],
        [(b"x-api-key", b"a")],
        [(b"authorization", b"a"), (b"x-api-key", b"b")],
        [(b"authorization", b"b")],
    ]
    assert len({user_of(each) for each in headers}) == len(headers)
    assert user_of([(b"x-other", b"z")]) == user_of([])


def test_a_prior_that_cannot_be_read_is_an_error_at_the_start(tmp_path: Path) -> None:
    ordering = {"tail": "popularity", "prior": tmp_path / "none.json"}

    with pytest.raises(ConfigError, match="cannot read"):
        Tenants(Settings.model_validate({"ordering": ordering}))
