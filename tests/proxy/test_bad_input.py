"""Bad input in the `ragboost` object is the caller's error; in other people's fields it passes."""

import json
import re
from typing import Any

import httpx
import pytest

from ragboost.errors import ContextIndexError
from tests.fakes import FakeEngine

PYTHON = re.compile(r"\b(None|NoneType|True|False|dict|dictionary|str|int|float|bool|tuple)\b")
URL = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "why?"}]


def post(client: httpx.Client, ours: Any, **fields: Any) -> httpx.Response:
    body = {"model": "m", "messages": QUESTION, "ragboost": ours, **fields}
    return client.post(URL, content=json.dumps(body).encode())


@pytest.mark.parametrize(
    ("ours", "param"),
    [
        ([], "ragboost"),
        (None, "ragboost"),
        ({"documnets": []}, "ragboost.documnets"),
        ({"documents": "text"}, "ragboost.documents"),
        ({"documents": {"text": "t"}}, "ragboost.documents"),
        ({"documents": None}, "ragboost.documents"),
        ({"documents": ["ok", {"text": []}]}, "ragboost.documents[1].text"),
        ({"documents": [{"id": 1}]}, "ragboost.documents[0].text"),
        ({"documents": [{"text": 7}]}, "ragboost.documents[0].text"),
        ({"documents": [{"text": "t", "id": [1]}]}, "ragboost.documents[0].id"),
        ({"documents": [{"text": "t", "score": "high"}]}, "ragboost.documents[0].score"),
        ({"documents": [{"text": "t", "score": float("nan")}]}, "ragboost.documents[0].score"),
        ({"documents": [{"text": "t", "title": 5}]}, "ragboost.documents[0].title"),
        ({"documents": [7]}, "ragboost.documents[0]"),
        ({"session_id": ""}, "ragboost.session_id"),
        ({"session_id": 5}, "ragboost.session_id"),
        ({"session_id": "x" * 257}, "ragboost.session_id"),
        ({"options": []}, "ragboost.options"),
        ({"options": {"boots": True}}, "ragboost.options.boots"),
        ({"options": {"boost": 1}}, "ragboost.options.boost"),
    ],
)
def test_a_malformed_object_is_a_400_that_names_the_field(
    client: httpx.Client, engine: FakeEngine, ours: Any, param: str
) -> None:
    answer = post(client, ours)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert param in error["message"]
    assert engine.requests == []


@pytest.mark.parametrize(
    "value", [None, True, 5, 1.5, "BIG", "", [], [[]], {}, {"a": None}, {"id": {}}, "\ud800"]
)
def test_messages_to_clients_have_the_words_of_json(client: httpx.Client, value: Any) -> None:
    fields = ("documents", "session_id", "options", "reuse", "graph", "other")
    bodies: list[Any] = [value, {"text": value}, {"text": "t", "id": value}, {"score": value}]
    ours = [value, *({name: value} for name in fields), *({"documents": [each]} for each in bodies)]
    ours += [{"reuse": {name: value}} for name in ("policy", "ratio", "measure", "chunks")]
    ours += [{"graph": {name: value}} for name in ("attention", "relations", "paths")]
    ours += [{"options": {"boost": value}}]
    sessions = [value, {"model": value}, {"metadata": value}, {"metadata": {"a": value}}]
    bodies = [(URL, {"model": "m", "messages": QUESTION, "ragboost": each}) for each in ours]
    bodies += [("/sessions", each) for each in sessions]
    for url, body in bodies:
        answer = client.post(url, content=json.dumps(body).replace('"BIG"', "9" * 5000))
        if answer.status_code == 400:
            message = answer.json()["error"]["message"]
            assert not PYTHON.search(message), message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "why?"}, "messages"),
        ({"messages": [{"role": "system", "content": "s"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
    ],
)
def test_documents_without_a_question_are_a_400(
    client: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    answer = post(client, {"documents": ["t"]}, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("prompt", [["a", "b"], [1, 2, 3], None])
def test_documents_need_a_prompt_that_is_one_string(client: httpx.Client, prompt: Any) -> None:
    body = {"model": "m", "prompt": prompt, "ragboost": {"documents": ["t"]}}
    answer = client.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


def test_an_empty_list_is_forwarded_with_nothing_to_do(
    client: httpx.Client, engine: FakeEngine
) -> None:
    answer = post(client, {"documents": []})
    assert answer.headers["x-ragboost-bypass"] == "no_documents"
    assert engine.requests[-1].json == {"model": "m", "messages": QUESTION}


def test_one_document_stands_before_the_question(client: httpx.Client, engine: FakeEngine) -> None:
    post(client, {"documents": [{"id": "a", "title": "On A", "text": "Text."}]})
    content = engine.requests[-1].json["messages"][0]["content"]
    assert content == "[Doc_a] On A\nText.\n\nwhy?"


def test_the_same_document_twice_is_sent_once(client: httpx.Client, engine: FakeEngine) -> None:
    answer = post(client, {"documents": ["twice", {"text": "once", "id": 1}, "twice"]})
    assert engine.requests[-1].body.count(b"twice") == 1
    assert answer.headers["x-ragboost-documents"] == "2"
    assert answer.headers["x-ragboost-documents-dropped"] == "1"


def test_ids_of_any_scalar_type_are_told_apart(client: httpx.Client, engine: FakeEngine) -> None:
    ids = [1, "1", 1.5, True, False, None, 0, -3, 10**25, "\u00fc", "a b"]
    documents = [{"id": value, "text": f"text {at}."} for at, value in enumerate(ids)]
    answer = post(client, {"documents": documents})
    assert answer.headers["x-ragboost-documents"] == str(len(ids))
    content = engine.requests[-1].json["messages"][0]["content"]
    assert all(f"text {at}." in content for at in range(len(ids)))


def test_ten_thousand_documents_in_one_request_are_boosted(
    client: httpx.Client, engine: FakeEngine
) -> None:
    documents = [{"id": i, "text": f"document number {i}, " + "x" * 40} for i in range(10_000)]
    answer = post(client, {"documents": documents})
    assert answer.headers["x-ragboost-documents"] == "10000"
    content = engine.requests[-1].json["messages"][0]["content"]
    assert all(document["text"] in content for document in documents[::500])


@pytest.mark.parametrize(
    "documents",
    ["text", {"a": 1}, 5, [5], [["x"]], [{}], [{"url": "x"}], ["ok", None]],
)
def test_a_documents_field_that_we_do_not_understand_passes_byte_for_byte(
    client: httpx.Client, engine: FakeEngine, documents: Any
) -> None:
    body = json.dumps({"messages": QUESTION, "documents": documents}, indent=2).encode()
    answer = client.post(URL, content=body)
    assert engine.requests[-1].body == body
    assert answer.headers["x-ragboost-bypass"] == "unknown_shape"


def test_boost_false_renders_the_documents_as_given(
    client: httpx.Client, engine: FakeEngine
) -> None:
    for documents in (["one", "two"], ["two", "one", "one"]):
        ours = {"documents": documents, "options": {"boost": False}}
        answer = post(client, ours)
        content = engine.requests[-1].json["messages"][0]["content"]
        places = [content.index(f"\n{text}\n") for text in dict.fromkeys(documents)]
        assert places == sorted(places)
        assert content.count("\none\n") == documents.count("one")
        assert content.endswith("\n\nwhy?")
        assert "by relevance" not in content
        assert answer.headers["x-ragboost-bypass"] == "option"


def test_a_failure_while_boosting_forwards_the_documents_as_given(
    client: httpx.Client,
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ContextIndexError("node 7 has no parent")

    monkeypatch.setattr("ragboost.booster.booster.Booster.boost", fail)
    for _ in range(2):
        answer = post(client, {"documents": ["one", "two"]})
        assert answer.status_code == 200
        assert answer.headers["x-ragboost-bypass"] == "context_index"
        content = engine.requests[-1].json["messages"][0]["content"]
        assert content.index("one") < content.index("two") < content.index("why?")
    body = json.dumps({"messages": QUESTION, "documents": ["one", "two"]}, indent=2).encode()
    client.post(URL, content=body)
    assert engine.requests[-1].body == body
    assert 'ragboost_bypass_total{reason="context_index"} 3.0' in client.get("/metrics").text
    assert caplog.text.count("node 7 has no parent") == 1


def test_a_bug_while_boosting_is_a_500_and_not_a_bypass(
    client: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ragboost.booster.booster.Booster.boost", fail)
    answer = post(client, {"documents": ["one"]})
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "internal_error"
    assert engine.requests == []
