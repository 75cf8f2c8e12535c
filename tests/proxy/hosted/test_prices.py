"""What a prompt costs follows from the reported usage and the configured prices."""

import pytest

from ragboost.config import PriceSettings, load_settings
from ragboost.errors import ConfigError
from ragboost.proxy.hosted.receipts import find_price, prompt_cost
from ragboost.requests.wires.usage import Usage, read_usage

PRICE = PriceSettings(model="claude-", input=3.0)


def test_the_price_with_the_longest_beginning_is_used() -> None:
    special = PriceSettings(model="claude-haiku", input=1.0)

    assert find_price([PRICE, special], "claude-haiku-4-5") is special
    assert find_price([special, PRICE], "claude-sonnet-4-5") is PRICE
    assert find_price([special, PRICE], "gpt-5") is None


def test_reads_are_cheap_and_writes_are_dear() -> None:
    usage = read_usage(
        {
            "usage": {
                "input_tokens": 1_000,
                "cache_read_input_tokens": 10_000,
                "cache_creation_input_tokens": 3_000,
                "cache_creation": {
                    "ephemeral_5m_input_tokens": 2_000,
                    "ephemeral_1h_input_tokens": 1_000,
                },
            }
        }
    )
    assert usage is not None

    cost = prompt_cost(PRICE, usage, dropped_tokens=500)

    assert cost.cost == pytest.approx((1_000 + 1_000 + 2_500 + 2_000) * 3e-6)
    assert cost.uncached == pytest.approx(14_500 * 3e-6)
    written = prompt_cost(PRICE, Usage(100, 0, 100))
    assert written.uncached < written.cost


def test_impossible_counts_cost_no_more_than_the_prompt() -> None:
    assert prompt_cost(PRICE, Usage(100, 900, 900)).cost == pytest.approx(10 * 3e-6)


def test_a_wrong_price_is_named_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"prices\.0\.input.*greater than 0, got -1"):
        load_settings({"prices": [{"model": "m", "input": -1}]})
