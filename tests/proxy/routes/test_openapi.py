"""The proxy's OpenAPI document says what its own routes do, and changes none of it."""

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from ragboost.proxy.app import create_app
from scripts.proxy_openapi import proxy_document
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer

DOCUMENT = proxy_document()
OPERATIONS = [
    (f"{method.upper()} {path}", operation)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_route_but_the_passthrough_is_in_the_document() -> None:
    routes = {
        f"{method} {route.path}"  # type: ignore[attr-defined]
        for route in create_app().routes
        for method in getattr(route, "methods", None) or ()
        if method != "HEAD"
    }
    assert {name for name, _ in OPERATIONS} == routes


@pytest.mark.parametrize(("name", "operation"), OPERATIONS)
def test_an_operation_has_a_summary_a_tag_and_errors_in_one_shape(
    name: str, operation: dict[str, Any]
) -> None:
    assert operation["summary"]
    assert operation["tags"]
    assert "422" not in operation["responses"]
    for status, response in operation["responses"].items():
        if status >= "400" and name != "GET /ready":
            (content,) = response["content"].values()
            assert content["schema"]["$ref"].endswith("/ProxyErrorResponse")


def test_operations_and_references_are_unique_and_complete() -> None:
    ids = [operation["operationId"] for _, operation in OPERATIONS]
    assert len(set(ids)) == len(ids)
    schemas = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert set(references(DOCUMENT)) <= schemas


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/redoc"])
def test_paths_of_documentation_are_the_backends(proxy: ProxyServer, path: str) -> None:
    assert httpx.get(proxy.url + path).json()["path"] == path


@pytest.mark.parametrize(
    "path", ["/health", "/version", "/metrics", "/dashboard", "/v1/sessions?user=u"]
)
def test_head_is_served_where_get_is(proxy: ProxyServer, engine: FakeEngine, path: str) -> None:
    answer = httpx.head(proxy.url + path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert engine.requests == []


def test_other_methods_of_a_route_are_forwarded(proxy: ProxyServer) -> None:
    assert httpx.put(f"{proxy.url}/v1/sessions", json={}).json()["method"] == "PUT"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"modle": "m"}', "modle"),
        (b'{"system": 1}', "system"),
        (b'{"metadata": {"a": 1}}', "metadata.a"),
        (b'{"metadata": {"a": "' + b"x" * 513 + b'"}}', "metadata.a"),
        (b"[]", None),
        (b'"\xff"', None),
    ],
)
def test_a_refused_session_names_the_field_in_openais_shape(
    proxy: ProxyServer, body: bytes, param: str | None
) -> None:
    answer = httpx.post(f"{proxy.url}/v1/sessions", content=body, headers={"x-request-id": "r"})
    error = answer.json()["error"]
    assert (answer.status_code, answer.headers["x-request-id"]) == (400, "r")
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, "400")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"metadata": null}'])
def test_a_session_needs_no_body_and_no_content_type(proxy: ProxyServer, body: bytes) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}  # curl's
    answer = httpx.post(f"{proxy.url}/v1/sessions", content=body, headers=headers)
    assert answer.status_code == 201
    assert answer.json()["metadata"] == {}


def test_the_session_api_is_limited_counted_and_logged_as_completions_are(
    start_proxy: Callable[..., ProxyServer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="ragboost.access")
    settings = {"access_log": True, "max_body_bytes": 1024, "api_keys": ["k"]}
    with httpx.Client(base_url=start_proxy(proxy=settings).url) as client:
        statuses = [client.post("/v1/sessions").status_code]
        client.headers["authorization"] = "Bearer k"
        statuses.append(client.post("/v1/sessions", content=b" " * 2000).status_code)
        statuses.append(client.get("/v1/sessions/none").status_code)
        statuses.append(client.get("/v1/sessions?user=u").status_code)
        text = client.get("/metrics").text
    assert statuses == [401, 413, 404, 200]
    lines = [json.loads(record.getMessage()) for record in caplog.records]
    assert [line["status"] for line in lines] == statuses
    assert [line["outcome"] for line in lines] == ["refused", "refused", "refused", "ok"]
    assert 'endpoint="sessions",model="",outcome="refused"} 3.0' in text


def test_the_page_of_metrics_is_open_unless_it_has_a_key_of_its_own(
    start_proxy: Callable[..., ProxyServer],
) -> None:
    """On a quiet proxy, its counters are the exact tokens of single requests."""
    open_page = start_proxy(proxy={"api_keys": ["k"]}).url
    closed = start_proxy(proxy={"api_keys": ["k"], "metrics_key": "m"}).url
    assert httpx.get(f"{open_page}/metrics").status_code == 200
    for headers in ({}, {"authorization": "Bearer k"}, {"x-api-key": "wrong"}):
        refused = httpx.get(f"{closed}/metrics", headers=headers)
        assert refused.status_code == 401
        assert "ragboost_" not in refused.text
    answer = httpx.get(f"{closed}/metrics", headers={"authorization": "Bearer m"})
    assert "ragboost_requests_total" in answer.text
    with_it = httpx.get(f"{closed}/v1/models", headers={"authorization": "Bearer m"})
    assert with_it.status_code == 401, "it opens nothing else"
