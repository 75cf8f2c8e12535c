"""The reference says what the engine's routes take and answer."""

import json
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from ragboost.engine.http.routes import ROUTES
from scripts import engine_schemas as schemas
from tests.engine.conftest import MODEL, Served

CHAT = {"messages": [{"role": "user", "content": "Who signed the lease?"}], "max_tokens": 2}


def test_the_reference_has_every_route_and_no_dangling_reference() -> None:
    paths = {route.path for route in ROUTES}
    objects = schemas.schemas()

    assert schemas.BODIES.keys() | schemas.RESPONSES.keys() <= paths
    assert {"/health", "/metrics", "/reset_prefix_cache"} <= paths
    names = {part.split('"')[0] for part in json.dumps(objects).split("#/$defs/")[1:]}
    assert names <= set(objects)
    chat = objects["ChatCompletionRequest"]["properties"]
    assert {"messages", "documents", "temperature", "cache_salt", "ragboost"} <= set(chat)


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/v2/models"])
def test_another_path_is_not_found_in_openais_shape(served: Served, path: str) -> None:
    reply = httpx.get(served.url + path)
    assert reply.status_code == 404
    assert reply.json()["error"]["message"] == "Not Found"


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/v1/chat/completions", CHAT, schemas.Completion),
        ("/v1/completions", {"prompt": "Dice:", "max_tokens": 2}, schemas.Completion),
        ("/tokenize", {"prompt": "Dice:"}, schemas.TokenizeResponse),
        ("/tokenize", {"prompt": 3}, schemas.ErrorResponse),
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
