"""The facts about the APIs and the prompt caches of providers agree with each other."""

from typing import get_args

from ragboost.requests.wires.providers import CACHE_MARKS, PROMPT_CACHES, MarkStyle
from ragboost.requests.wires.registry import ANY, CONTENTS, WIRES


def test_every_style_of_marks_is_a_prompt_cache_and_its_ttls_ascend() -> None:
    styles = [cache.style for cache in PROMPT_CACHES]
    assert sorted(get_args(MarkStyle)) == sorted(["none", *styles])
    assert len(set(CACHE_MARKS)) == len(CACHE_MARKS)
    for cache in PROMPT_CACHES:
        seconds = [ttl for ttl, _ in cache.ttls]
        assert bool(cache.key) != bool(seconds)
        assert seconds == sorted(seconds)


def test_wires_with_one_field_of_messages_agree_on_a_messages_content() -> None:
    assert len({wire.path for wire in WIRES}) == len(WIRES)
    assert set(CONTENTS) == set(ANY.messages)
    for wire in WIRES:
        assert {*wire.messages, *wire.prompts}, wire.endpoint
        assert all(wire.content == (CONTENTS[name],) for name in wire.messages)
        assert set(wire.rewritten) <= {*wire.messages, *wire.prompts}
