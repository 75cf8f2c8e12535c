"""Usage as each kind of server words it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragboost.requests.wires.usage import Usage, read_usage

COUNT = st.none() | st.integers(-5, 40) | st.sampled_from([True, 2**53, 2**70, 1.5, "9", [], {}])


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        (
            {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}},
            Usage(9, 4, None),
        ),
        ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": None}}, Usage(9, None, None)),
        (
            {
                "usage": {
                    "prompt_tokens": 9,
                    "prompt_tokens_details": {"cached_tokens": 4, "created_cache_tokens": 5},
                }
            },
            Usage(9, 4, 5),
        ),
        (
            {"usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}}},
            Usage(9, 4, None),
        ),
        (
            {
                "type": "response.completed",
                "response": {
                    "usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 0}}
                },
            },
            Usage(9, 0, None),
        ),
        (
            {
                "usage": {
                    "input_tokens": 2,
                    "cache_read_input_tokens": 4,
                    "cache_creation_input_tokens": 3,
                }
            },
            Usage(9, 4, 3),
        ),
        (
            {
                "type": "message_start",
                "message": {"usage": {"input_tokens": 2, "cache_read_input_tokens": 7}},
            },
            Usage(9, 7, 0),
        ),
        (
            {
                "usage": {
                    "input_tokens": 2,
                    "cache_creation": {
                        "ephemeral_5m_input_tokens": 3,
                        "ephemeral_1h_input_tokens": 4,
                    },
                }
            },
            Usage(9, 0, 7),
        ),
        (
            {"usage": {"prompt_tokens": 9, "prompt_cache_hit_tokens": 4}},
            Usage(9, 4, None),
        ),
        ({"meta_info": {"prompt_tokens": 9, "cached_tokens": 4}}, Usage(9, 4, None)),
        ({"usage": {"prompt_tokens": 9, "cached_tokens": 40}}, Usage(9, 9, None)),
        ({"usage": {"prompt_tokens": 9, "cached_tokens": True}}, Usage(9, None, None)),
        ({"usage": {"prompt_tokens": 9, "cached_tokens": -1}}, Usage(9, None, None)),
    ],
    ids=[
        "openai",
        "without cache report",
        "vllm",
        "responses",
        "responses event",
        "anthropic",
        "anthropic event",
        "anthropic by ttl",
        "deepseek",
        "sglang generate",
        "more cached than prompt",
        "boolean",
        "negative",
    ],
)
def test_usage_is_read_from_every_shape(answer: dict[str, Any], usage: Usage) -> None:
    assert read_usage(answer) == usage


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"usage": None},
        {"usage": {}},
        {"usage": {"completion_tokens": 3}},
        {"usage": {"prompt_tokens": "9"}},
        {"message": "text", "response": None},
    ],
)
def test_an_answer_without_prompt_tokens_has_no_usage(answer: dict[str, Any]) -> None:
    assert read_usage(answer) is None


@given(
    COUNT, COUNT, COUNT | st.dictionaries(st.sampled_from(["reused", "recomputed"]), COUNT), COUNT
)
def test_the_zones_of_a_prompt_are_no_more_than_the_prompt_whatever_is_reported(
    prompt: Any, cached: Any, ours: Any, planned: Any
) -> None:
    fields = {"prompt_tokens": prompt, "cached_tokens": cached, "ragboost": ours}
    usage = read_usage({"usage": fields})
    if usage is None:
        return
    bought = planned if type(planned) is int and planned >= 0 else 0
    stored = usage.cached_tokens, usage.reused_tokens, usage.recomputed_tokens
    counts = [count or 0 for count in (*stored, usage.bought_tokens(bought))]
    assert min(counts) >= 0
    assert sum(counts) <= usage.prompt_tokens
