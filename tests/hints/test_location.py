from ragboost.hints import location_hints


def test_there_is_one_location_hint_per_document() -> None:
    hints = location_hints(["[a]", "[b]"], template="See {document}.")

    assert [(hint.text, hint.labels) for hint in hints] == [
        ("See [a].", ("[a]",)),
        ("See [b].", ("[b]",)),
    ]
