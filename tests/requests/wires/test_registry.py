"""The facts about the APIs agree with each other."""

from ragboost.requests.wires.registry import ANY, CONTENTS, WIRES


def test_wires_with_one_field_of_messages_agree_on_a_messages_content() -> None:
    assert len({wire.path for wire in WIRES}) == len(WIRES)
    assert set(CONTENTS) == set(ANY.messages)
    for wire in WIRES:
        assert {*wire.messages, *wire.prompts}, wire.endpoint
        assert all(wire.content == (CONTENTS[name],) for name in wire.messages)
        assert set(wire.rewritten) <= {*wire.messages, *wire.prompts}
