"""Order policies are chosen by their names in the settings."""

from typing import Any

import pytest
from pydantic import ValidationError

from ragboost.config import OrderingSettings
from ragboost.ordering import OrderPolicy, RecentContexts, make_order_policy


@pytest.mark.parametrize("name", ["relevance", "popularity"])
def test_every_policy_keeps_all_documents(name: Any) -> None:
    policy = make_order_policy(OrderingSettings(tail=name))
    policy.add("bca")

    assert sorted(map(str, policy.order("abc", dict.fromkeys("abc", 10)))) == ["a", "b", "c"]


def test_a_policy_is_chosen_by_name() -> None:
    assert type(make_order_policy(OrderingSettings(tail="relevance"))) is OrderPolicy
    assert isinstance(make_order_policy(OrderingSettings()), RecentContexts)


def test_another_name_is_an_error_that_lists_the_policies() -> None:
    with pytest.raises(ValidationError, match="'relevance' or 'popularity'"):
        OrderingSettings(tail="alphabetical")  # type: ignore[arg-type]
