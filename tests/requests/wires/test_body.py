from typing import Any

from ragboost.requests.wires.body import put


def test_put_copies_each_object_once_for_many_values() -> None:
    body: dict[str, Any] = {"messages": [{"content": "a"}, {"content": "b"}], "model": "m"}
    copies: dict[int, Any] = {}

    first = put(body, ("messages", 0, "content"), "A", copies=copies)
    messages = first["messages"]
    second = put(first, ("messages", 1, "content"), "B", copies=copies)

    assert second == {"messages": [{"content": "A"}, {"content": "B"}], "model": "m"}
    assert second["messages"] is messages, "the list was copied again"
    assert body["messages"] == [{"content": "a"}, {"content": "b"}]
