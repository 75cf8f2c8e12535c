from ragboost.hints import order_hint


def test_the_order_hint_has_the_papers_wording() -> None:
    template = (
        "Please read the context in the following priority order: {order} and answer the question."
    )

    hint = order_hint(["[Doc_1]", "[Doc_2]", "[Doc_4]"], [1, 0, 2], template=template)

    assert hint is not None
    assert hint.text == (
        "Please read the context in the following priority order: [Doc_2] >> [Doc_1] >> [Doc_4] "
        "and answer the question."
    )


def test_a_long_order_hint_names_the_most_relevant_and_the_rest_if_it_is_in_order() -> None:
    labels = [f"[{i}]" for i in range(60)]
    first = [49, *range(49)]

    short = order_hint(labels, first, template="{order}")
    assert short is not None
    assert short.text.endswith("[47] >> [48]")
    long = order_hint(labels, [*first, *range(50, 60)], template="{order}.")
    assert long is not None
    assert long.text.endswith("[47] >> [48] >> then the rest in the order shown.")
    assert long.labels == tuple(labels[place] for place in first)
    moved = order_hint(labels, [*first, *range(51, 60), 50], template="{order}.")
    assert moved is not None
    assert moved.text.endswith("[47] >> [48].")
    assert moved.labels == long.labels


def test_the_order_hint_names_copies_of_a_document_once() -> None:
    labels = ["[b]", "[a]", "[c]", "[a]"]  # retrieved as a, b, a, c

    hint = order_hint(labels, [1, 0, 3, 2], template="{order}")

    assert hint is not None
    assert (hint.text, hint.labels) == ("[a] >> [b] >> [c]", ("[a]", "[b]", "[c]"))


def test_documents_of_which_only_copies_have_moved_get_no_order_hint() -> None:
    assert order_hint(["[a]", "[a]", "[b]"], [0, 2, 1], template="{order}") is None
    assert order_hint(["[a]", "[b]"], [0, 1], template="{order}") is None
