import json
import pickle
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragboost.booster import Booster
from ragboost.errors import InvalidDocumentError, RequestError
from ragboost.types import Document, Request, as_document, as_documents, document_key

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)


def test_ids_of_different_json_types_are_different_documents() -> None:
    documents = [Document("text", id=i) for i in (1, "1", 1.0, True, None, "true", 0, False, "")]

    assert len(set(documents)) == len({d.key for d in documents}) == len(documents)


def test_equal_id_title_and_text_are_the_same_document_whatever_the_score() -> None:
    one = Document("text", id=7, title="t", score=0.1, metadata={"a": [1]})
    other = Document("text", id=7, title="t", score=0.9)

    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other}) == 1


def test_an_id_with_a_new_text_is_another_document() -> None:
    assert Document("old", id=7) != Document("new", id=7)


@given(SCALARS, SCALARS, st.text(max_size=6), st.text(max_size=6))
def test_keys_are_equal_only_for_equal_json(a: object, b: object, x: str, y: str) -> None:
    same = json.dumps([a, x]) == json.dumps([b, y])

    assert (document_key(x, id=a) == document_key(y, id=b)) == same  # type: ignore[arg-type]


def test_title_and_text_do_not_run_into_each_other() -> None:
    assert document_key("bc", title="a") != document_key("c", title="ab")
    assert document_key("c", title="") != document_key("c")


@pytest.mark.parametrize(
    ("document_id", "label"),
    [
        ("report-7.pdf:3", "report-7.pdf:3"),
        (7, "7"),
        (True, "true"),
        (1.5, "1.5"),
        ("x" * 40, "x" * 40),
    ],
)
def test_a_short_plain_id_is_the_label(document_id: str | int | float, label: str) -> None:
    assert Document("text", id=document_id).label == label


@pytest.mark.parametrize("document_id", [None, "", "two words", "x" * 41, "a]b", "é", -1, "7\n"])
def test_any_other_id_gets_digits_of_the_key_as_label(document_id: str | int | None) -> None:
    document = Document("text", id=document_id)

    assert document.label == document.key[:8]


def test_a_lone_surrogate_is_kept() -> None:
    document = Document("bad \ud800 text", id="\udfff", title="\ud801")

    assert document.text == "bad \ud800 text"
    assert document.label == document.key[:8]


@pytest.mark.parametrize("text", ["", "  \n\t", None, 5, b"bytes", ["text"]])
def test_a_document_without_text_is_refused(text: object) -> None:
    with pytest.raises(InvalidDocumentError, match=r"text must be a non-empty string") as caught:
        Document(text)  # type: ignore[arg-type]

    assert caught.value.param == "text"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", [1]),
        ("id", {"a": 1}),
        ("id", float("nan")),
        ("id", float("inf")),
        pytest.param("id", 10**5000, id="huge id"),
        ("id", b"7"),
        ("score", float("nan")),
        ("score", float("-inf")),
        ("score", "0.9"),
        ("score", True),
        pytest.param("score", 10**5000, id="huge score"),
        ("title", 5),
        ("metadata", [1]),
    ],
)
def test_a_bad_field_is_named(field: str, value: object) -> None:
    with pytest.raises(InvalidDocumentError, match=rf"documents\[1\]\.{field}: {field} must") as e:
        as_documents(["fine", {"text": "text", field: value}])

    assert e.value.param == f"documents[1].{field}"
    assert len(str(e.value)) < 300


@pytest.mark.parametrize(
    ("value", "document_id"),
    [
        (UUID("12345678-1234-5678-1234-567812345678"), "12345678-1234-5678-1234-567812345678"),
        (np.int64(7), 7),
        (np.uint8(7), 7),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array(7), 7),
    ],
)
def test_an_id_of_python_is_that_of_json(value: Any, document_id: object) -> None:
    document, plain = Document("text", id=value), Document("text", id=document_id)  # type: ignore[arg-type]
    assert document.key == plain.key
    assert document.label == plain.label
    assert json.loads(json.dumps(document.id)) == document_id


@pytest.mark.parametrize(
    "value", [np.array([1]), np.float32("nan"), np.datetime64("2026-01-01"), np.complex64(1), Any]
)
def test_any_other_object_is_no_id(value: Any) -> None:
    with pytest.raises(InvalidDocumentError, match="id must be a JSON scalar"):
        Document("text", id=value)


BLANK = ["", " \n", {"text": ""}, {"id": 1, "content": "\u00a0"}, {"page_content": None}]


def test_documents_without_text_are_left_out() -> None:
    values = ["a", *BLANK, Document("b")]
    assert [document.text for document in as_documents(values)] == ["a", "b"]
    assert as_documents(BLANK) == []
    with pytest.raises(InvalidDocumentError, match=r"documents\[6\]"):
        as_documents(["a", *BLANK, {"text": 5}])
    context = Booster().boost("q", values)
    assert (context.positions, context.num_blank) == ((0, 1), 5)
    [context] = Booster().boost_batch([Request("q", tuple(values))]).contexts
    assert context.positions == (0, 1)


@pytest.mark.parametrize("value", [None, 5, ["text"], b"text"])
def test_something_that_is_no_document_is_named_by_its_place(value: object) -> None:
    with pytest.raises(InvalidDocumentError, match=r"documents\[0\]: must be a string or") as e:
        as_documents([value])  # type: ignore[list-item]

    assert e.value.param == "documents[0]"


@pytest.mark.parametrize("values", ["text", b"text", {"text": "t"}, None, 5, iter(["text"])])
def test_documents_must_be_a_list(values: object) -> None:
    with pytest.raises(InvalidDocumentError, match="documents must be a list"):
        as_documents(values)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["text", "content", "page_content"])
def test_texts_of_other_frameworks_are_read(name: str) -> None:
    document = as_document({name: "hello", "doc_id": 3, "title": "T", "score": 1, "metadata": None})

    assert (document.text, document.id, document.title, document.score) == ("hello", 3, "T", 1)


def test_a_mapping_without_text_is_told_what_is_missing() -> None:
    with pytest.raises(InvalidDocumentError, match=r"document\.text: is missing, .* got .*body"):
        as_document({"body": "hello"})


def test_a_document_survives_pickling() -> None:
    document = Document("text", id=1, metadata={"a": 1})

    assert pickle.loads(pickle.dumps(document)).key == document.key


def test_a_request_turns_texts_into_documents() -> None:
    request = Request("q", ["a", {"text": "b"}])  # type: ignore[arg-type]

    assert request.documents == (Document("a"), Document("b"))


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"query": None}, "query"),
        ({"query": b"q"}, "query"),
        ({"session": ""}, "session"),
        ({"session": 5}, "session"),
        ({"documents": [{"text": 5}]}, "documents[0].text"),
    ],
)
def test_a_bad_request_names_the_field(arguments: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        Request(**{"query": "q", "documents": (), **arguments})  # type: ignore[arg-type]

    assert caught.value.param == param
