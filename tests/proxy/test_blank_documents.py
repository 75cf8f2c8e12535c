"""Chunks without text, such as the images of pages, do not cost the answer."""

import json
from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine
from tests.metrics import read_metric

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "Who?"}]
TEXTS = ["Maria signed the lease.", "The rent is 2,400 euros."]
BLANK = [{"id": "x", "text": ""}, {"id": "x", "text": " \n"}, {"text": None}, ""]


def counts(answer: httpx.Response) -> tuple[str, str]:
    assert answer.status_code == 200, answer.text
    names = ("x-ragboost-documents", "x-ragboost-documents-dropped")
    return answer.headers[names[0]], answer.headers[names[1]]


@pytest.mark.parametrize("blank", BLANK, ids=json.dumps)
@pytest.mark.parametrize("options", [{}, {"options": {"boost": False}}])
def test_a_blank_document_of_the_object_is_left_out_and_counted(
    client: httpx.Client, engine: FakeEngine, blank: Any, options: dict[str, Any]
) -> None:
    documents = [TEXTS[0], blank, TEXTS[1]]
    body = {"model": "m", "messages": QUESTION, "ragboost": {"documents": documents, **options}}
    for num in (1, 2):  # a retry, too
        assert counts(client.post(CHAT, json=body)) == ("2", "1")
        sent = engine.requests[-1].json["messages"][0]["content"]
        assert all(sent.count(text) == 1 for text in TEXTS)
        assert (
            read_metric(
                str(client.base_url).rstrip("/"), "ragboost_documents_total", result="blank"
            )
            == num
        )


def test_a_request_with_blank_documents_only_is_one_without(
    client: httpx.Client, engine: FakeEngine
) -> None:
    body = {"model": "m", "messages": QUESTION, "ragboost": {"documents": BLANK}}
    answer = client.post(CHAT, json=body)
    assert counts(answer) == ("0", "4")
    assert answer.headers["x-ragboost-bypass"] == "no_documents"
    assert engine.requests[-1].json == {"model": "m", "messages": QUESTION}


@pytest.mark.parametrize("parent", [None, "chat_template_kwargs"])
def test_a_blank_element_of_the_documents_field_is_left_out_and_counted(
    client: httpx.Client, engine: FakeEngine, parent: str | None
) -> None:
    documents = [TEXTS[0], *BLANK, TEXTS[1]]
    fields: Any = {"documents": documents}
    body = {"model": "m", "messages": QUESTION, **({parent: fields} if parent else fields)}
    assert counts(client.post(CHAT, json=body)) == ("2", "4")
    sent = engine.requests[-1].json
    assert (sent[parent] if parent else sent)["documents"] == TEXTS


def test_a_blank_document_of_a_turn_is_left_out_and_counted(
    client: httpx.Client, engine: FakeEngine
) -> None:
    session = client.post("/v1/sessions", json={"model": "m"}).json()["id"]
    path = f"/v1/sessions/{session}/chat/completions"
    for dropped in ("4", "6"):  # the second turn refers to the two of the first one
        turn = {"query": "Who?", "documents": [*BLANK, *TEXTS]}
        assert counts(client.post(path, json=turn))[1] == dropped


def test_equal_texts_of_two_sources_keep_both_names(
    client: httpx.Client, engine: FakeEngine
) -> None:
    documents = [
        {"id": f"r{year}", "title": f"Report {year}", "text": "Revenue was five million."}
        for year in (2023, 2024)
    ]
    body = {"model": "m", "messages": QUESTION, "ragboost": {"documents": documents}}
    assert counts(client.post(CHAT, json=body)) == ("2", "0")
    sent = engine.requests[-1].json["messages"][0]["content"]
    assert "Report 2023" in sent
    assert "Report 2024" in sent
