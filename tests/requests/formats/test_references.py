"""References to documents of earlier messages."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.requests.formats.rewriting import find, reorder

TEXTS = {name: f"{name} is the beginning. " + f"And {name} goes on. " * 20 for name in "ABCDEF"}


@given(
    st.lists(st.lists(st.sampled_from("ABCDEF"), min_size=2, max_size=4), min_size=2, max_size=5)
)
@settings(max_examples=50, deadline=None)
def test_a_reference_has_its_target_in_an_earlier_message(turns: list[list[str]]) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Why?"}]
    for names in turns:
        results = [{"text": TEXTS[name]} for name in names]
        messages.append({"role": "assistant", "content": "", "tool_calls": []})
        messages.append({"role": "tool", "content": json.dumps(results)})
    found = find({"messages": messages})
    new = reorder({"messages": messages})["messages"] if found else messages
    earlier: set[str] = set()
    for names, message in zip(turns, new[2::2], strict=True):
        results = json.loads(message["content"])
        for name, result in zip(names, results, strict=True):
            is_whole = result["text"] == TEXTS[name]
            assert is_whole == (name not in earlier)
            assert is_whole or f'"{name} is the beginning.' in result["text"]
        earlier |= set(names)
