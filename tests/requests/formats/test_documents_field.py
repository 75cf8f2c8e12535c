"""The `documents` field: found, moved, never changed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragboost.booster.context import Context
from ragboost.config import HintSettings
from ragboost.requests.formats import FoundDocuments, UnknownShapeError
from ragboost.requests.formats.documents_field import DocumentsField

FIELD = DocumentsField(HintSettings(), max_documents=100)


def body_of(documents: Any, question: Any = "why?") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}], "documents": documents}


def context_of(found: FoundDocuments, order: list[int]) -> Context:
    documents = tuple(found.documents[i] for i in order)
    keys = [document.key for document in documents]
    positions = tuple(keys.index(document.key) for document in found.documents)
    return Context(found.query, documents, found.documents, positions, labels=tuple(keys))


def moved(body: dict[str, Any], order: list[int], shape: DocumentsField = FIELD) -> dict[str, Any]:
    found = shape.extract(body)
    assert found is not None
    return shape.replace(body, found, context_of(found, order))


def question(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


@pytest.mark.parametrize(
    "documents",
    [
        ["one", "two", "three"],
        [{"title": f"T{i}", "text": f"text {i}"} for i in range(3)],
        [{"id": i, "data": {"title": "same", "snippet": f"text {i}"}} for i in range(3)],
        [{"text": f"text {i}", "url": "u", "n": [1, {"x": None}]} for i in range(3)],
        ["one", {"text": "two"}, {"title": "t", "text": "three"}],
    ],
)
def test_objects_are_moved_and_kept_as_they_are(documents: list[Any]) -> None:
    body = body_of(documents)
    new = moved(body, [2, 0, 1])
    assert [id(value) for value in new["documents"]] == [id(documents[i]) for i in (2, 0, 1)]
    assert body == body_of(documents)


def test_equal_documents_that_keep_their_places_get_no_order_hint() -> None:
    body = body_of([{"text": text} for text in ("one", "two", "three", "two")])
    new = moved(body, [0, 1, 2, 3])
    assert question(new) == "why?"
    assert new["documents"] == body["documents"]


def test_a_body_that_keeps_its_order_is_the_same() -> None:
    body = body_of(["one", "two"])
    assert all(
        new is old for new, old in zip(moved(body, [0, 1]).values(), body.values(), strict=True)
    )


def test_the_order_hint_calls_documents_by_distinct_titles() -> None:
    documents = [{"title": title, "text": title * 3} for title in ("First", "Second", "Third")]
    new = moved(body_of(documents), [2, 0, 1])
    assert '"First" >> "Second" >> "Third"' in question(new)
    assert question(new).endswith("\n\nwhy?")


def test_the_order_hint_calls_untitled_documents_by_position() -> None:
    new = moved(body_of(["one", "two", "three"]), [2, 0, 1])
    assert "document 2 >> document 3 >> document 1" in question(new)


def test_equal_titles_are_no_names() -> None:
    documents = [{"title": "Same", "text": text} for text in ("one", "two")]
    assert "document 2 >> document 1" in question(moved(body_of(documents), [1, 0]))


def test_the_hint_stands_before_the_question_unless_it_is_off() -> None:
    shape = DocumentsField(HintSettings(), max_documents=100)
    assert question(moved(body_of(["one", "two"]), [1, 0], shape)).endswith("\n\nwhy?")
    shape = DocumentsField(HintSettings(order=False), max_documents=100)
    assert question(moved(body_of(["one", "two"]), [1, 0], shape)) == "why?"


def test_equal_documents_are_sent_once_and_need_no_hint_in_their_order() -> None:
    new = moved(body_of(["one", "two", "one"]), [0, 1])
    assert (new["documents"], question(new)) == (["one", "two"], "why?")


def test_the_question_is_the_last_text_of_the_last_user_message() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    parts = [{"type": "text", "text": "look"}, {"type": "text", "text": "why?"}, image]
    body = body_of(["one", "two"], parts)
    body["messages"].append({"role": "assistant", "content": "so"})
    new = moved(body, [1, 0])
    first, second, third = new["messages"][0]["content"]
    assert (first, third) == (parts[0], image)
    assert second["text"].endswith("why?")
    assert second["text"] != "why?"
    assert new["messages"][1] is body["messages"][1]


@pytest.mark.parametrize("name", ["text", "content", "page_content"])
def test_the_text_of_an_element_has_any_of_the_common_names(name: str) -> None:
    body = body_of([{"title": "A", name: "one"}, {"title": "B", name: "two"}])
    assert moved(body, [1, 0])["documents"] == body["documents"][::-1]


def test_coheres_elements_without_text_are_left_out() -> None:
    blank = [{"id": "b", "data": ""}, {"id": "c", "data": {"title": "T", "text": " "}}]
    body = body_of([{"id": "a", "data": {"text": "one"}}, *blank, {"id": "d", "data": "two"}])
    found = FIELD.extract(body)
    assert found is not None
    assert (found.blank, len(found.documents)) == ((1, 2), 2)


@pytest.mark.parametrize("documents", [None, []])
def test_no_documents_are_nothing_to_do(documents: Any) -> None:
    assert FIELD.extract(body_of(documents)) is None
    assert FIELD.extract({"messages": []}) is None


@pytest.mark.parametrize("documents", ["text", {"text": "t"}, [1], [None], [{}], [{"text": 5}]])
def test_what_we_do_not_understand_is_left_alone(documents: Any) -> None:
    with pytest.raises(UnknownShapeError):
        FIELD.extract(body_of(documents))


def test_elements_without_text_are_left_out_but_not_those_with_something_else() -> None:
    blank = ["", " ", {"text": "", "id": 1}, {"text": None, "title": "T", "url": ""}]
    blank += [{"title": "T", "content": "\n"}, {"page_content": "", "metadata": {"n": 1}}]
    body = body_of(["one", *blank, "two"])
    found = FIELD.extract(body)
    assert found is not None
    assert (found.blank, len(found.documents)) == (tuple(range(1, 7)), 2)
    for order in ([0, 1], [1, 0]):
        new = FIELD.replace(body, found, context_of(found, order))
        assert new["documents"] == [["one", "two"][at] for at in order]
    assert FIELD.extract(body_of(blank)) is None
    with pytest.raises(UnknownShapeError):
        FIELD.extract(body_of(["one", {"text": "", "image": "data:"}]))


@given(
    st.lists(
        st.one_of(
            st.text(min_size=1, max_size=3),
            st.fixed_dictionaries(
                {"text": st.text(min_size=1, max_size=3)},
                optional={"title": st.text(max_size=2), "id": st.integers(0, 2)},
            ),
        ),
        min_size=1,
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_no_document_is_lost_in_any_order(documents: list[Any], random: Any) -> None:
    body = body_of(documents)
    try:
        found = FIELD.extract(body)
    except UnknownShapeError:
        return
    if found is None:
        assert not any((v if isinstance(v, str) else v["text"]).strip() for v in documents)
        return
    first = {document.key: i for i, document in reversed(list(enumerate(found.documents)))}
    order = sorted(first.values())
    random.shuffle(order)
    new = FIELD.replace(body, found, context_of(found, order))
    texts = [value if isinstance(value, str) else value["text"] for value in new["documents"]]
    given_texts = [value if isinstance(value, str) else value["text"] for value in documents]
    assert set(texts) == {text for text in given_texts if text.strip()}
    assert len(new["documents"]) == len(first)
