"""The facts about the APIs and the prompt caches of providers agree with each other."""

from ragboost.requests.wires.providers import CACHE_MARKS, PROMPT_CACHES
from ragboost.requests.wires.registry import ANY, CONTENTS, WIRES


def test_every_prompt_cache_has_one_mark_and_a_lifetime_without_a_ttl() -> None:
    assert len(set(CACHE_MARKS)) == len(CACHE_MARKS)
    for cache in PROMPT_CACHES:
        assert cache.ttls[None] == min(cache.ttls.values())


def test_wires_with_one_field_of_messages_agree_on_a_messages_content() -> None:
    assert len({wire.path for wire in WIRES}) == len(WIRES)
    assert set(CONTENTS) == set(ANY.messages)
    for wire in WIRES:
        assert {*wire.messages, *wire.prompts}, wire.endpoint
        assert all(wire.content == (CONTENTS[name],) for name in wire.messages)
        assert set(wire.rewritten) <= {*wire.messages, *wire.prompts}
