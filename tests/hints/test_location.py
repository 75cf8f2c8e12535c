from ragboost.hints import location_hints


def test_there_is_one_location_hint_per_document() -> None:
    hints = location_hints(["[a]", "[b]"], template="See {document}.")

    assert [(hint.text, hint.labels) for hint in hints] == [
        ("See [a].", ("[a]",)),
        ("See [b].", ("[b]",)),
    ]


def test_one_hint_refers_to_all_documents_that_there_are() -> None:
    labels = ["[a]", "[b]", "[c]", "[d]"]

    all_hints = location_hints(labels, template="See {document}.", num_carried=4)
    some_hints = location_hints(labels, template="See {document}.", num_carried=5)

    assert [(hint.text, hint.labels) for hint in all_hints] == [("See all documents.", (*labels,))]
    assert len(some_hints) == 4
