"""The OpenAPI document says what the engine's routes take and answer."""

import json
from typing import Any

import httpx
import pytest
from pydantic import BaseModel
from starlette.testclient import TestClient

from ragboost.engine.http import schemas
from ragboost.engine.http.app import make_app
from tests.engine.conftest import MODEL, Served

CHAT = {"messages": [{"role": "user", "content": "Who signed the lease?"}], "max_tokens": 2}


def test_the_document_has_every_route_and_no_dangling_reference(served: Served) -> None:
    document = httpx.get(f"{served.url}/openapi.json").json()

    assert set(document["paths"]) == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/health",
        "/metrics",
        "/kv_event_sources",
        "/chunk_reuse",
        "/reset_prefix_cache",
    }
    names = {part.split('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])
    chat = document["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert {"messages", "documents", "temperature", "cache_salt", "ragboost"} <= set(chat)
    assert "Swagger" in httpx.get(f"{served.url}/docs").text


def test_docs_can_be_switched_off() -> None:
    client = TestClient(make_app(has_docs=False))

    for path in ("/openapi.json", "/docs"):
        reply = client.get(path)
        assert reply.status_code == 404
        assert reply.json()["error"]["message"] == "Not Found"


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/v1/chat/completions", CHAT, schemas.Completion),
        ("/v1/completions", {"prompt": "Dice:", "max_tokens": 2}, schemas.Completion),
        ("/tokenize", {"prompt": "Dice:", "return_token_strs": True}, schemas.TokenizeResponse),
        ("/tokenize", {"prompt": 3}, schemas.ErrorResponse),
        ("/detokenize", {"tokens": [5, 6]}, schemas.DetokenizeResponse),
        ("/v1/models", None, schemas.ModelList),
        ("/chunk_reuse", None, schemas.ChunkReuseInfo),
    ],
)
def test_answers_have_the_documented_shape(
    served: Served, path: str, body: dict[str, Any] | None, model: type[BaseModel]
) -> None:
    url = f"{served.url}{path}"
    answer = (httpx.get(url) if body is None else httpx.post(url, json=body)).json()

    read = model.model_validate(answer)
    assert read.model_dump(exclude_unset=True) == answer


def test_null_is_absent_and_unknown_fields_are_ignored(served: Served) -> None:
    absent = dict.fromkeys(
        ["temperature", "top_p", "seed", "stop", "stream", "stream_options", "cache_salt"]
    )
    ragboost = {"reuse": None, "chunks": None, "graph": None}
    body = {**CHAT, **absent, "model": MODEL, "rid": 7, "user": "me", "ragboost": ragboost}

    assert httpx.post(f"{served.url}/v1/chat/completions", json=body).status_code == 200
