"""The `ragboost` object: documents in, the object out."""

from typing import Any

import pytest

from ragboost.booster.booster import Booster
from ragboost.errors import RequestError
from ragboost.requests.formats.documents import DocumentPool
from ragboost.requests.formats.ragboost_object import RagboostObject

SHAPE = RagboostObject(max_documents=100, pool=DocumentPool())


def boost(body: dict[str, Any]) -> dict[str, Any]:
    found = SHAPE.extract(body)
    assert found is not None
    return SHAPE.replace(body, found, Booster().boost(found.query, found.documents))


def test_documents_stand_before_the_question_and_the_object_is_gone() -> None:
    message = {"role": "user", "content": "why?", "name": "me"}
    system = {"role": "system", "content": "Be brief."}
    ours = {"documents": [{"id": 1, "text": "One."}, {"id": 2, "text": "Two."}]}
    body = {"model": "m", "messages": [system, message], "ragboost": ours}
    new = boost(body)
    assert new == {
        "model": "m",
        "messages": [system, {**message, "content": "[Doc_1]\nOne.\n\n[Doc_2]\nTwo.\n\nwhy?"}],
    }
    assert new["messages"][0] is system
    assert message["content"] == "why?"


def test_a_prompt_is_a_question_too() -> None:
    new = boost({"prompt": "why?", "ragboost": {"documents": [{"id": 1, "text": "One."}]}})
    assert new == {"prompt": "[Doc_1]\nOne.\n\nwhy?"}


def test_a_message_of_images_gets_a_text_of_its_own() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    body = {"messages": [{"role": "user", "content": [image]}], "ragboost": {"documents": ["One."]}}
    first, second = boost(body)["messages"][0]["content"]
    assert second is image
    assert first["type"] == "text"
    assert "One." in first["text"]


def test_a_body_without_documents_has_nothing_to_find() -> None:
    assert SHAPE.extract({"messages": []}) is None
    assert SHAPE.extract({"messages": [], "ragboost": {}}) is None
    assert SHAPE.extract({"messages": [], "ragboost": {"documents": []}}) is None


def test_the_error_names_the_document_and_the_field() -> None:
    body = {"prompt": "q", "ragboost": {"documents": ["ok", {"text": "t", "score": float("inf")}]}}
    with pytest.raises(RequestError) as caught:
        SHAPE.extract(body)
    assert caught.value.param == "ragboost.documents[1].score"


def test_a_body_into_which_documents_cannot_be_written_is_told_the_other_way() -> None:
    body = {"input": [{"role": "user", "content": "why?"}], "ragboost": {"documents": ["a", "b"]}}
    with pytest.raises(RequestError, match="in other fields mark the documents in the text"):
        SHAPE.extract(body)
