"""Responses that name the backend's address lead clients to the proxy instead."""

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from ragboost.proxy.app import create_app
from ragboost.proxy.routes.relay import client_location
from tests.fakes import FakeEngine
from tests.fakes.proxy import proxy_settings


def test_a_redirect_of_the_backend_stays_at_the_proxy(
    client: httpx.Client, engine: FakeEngine
) -> None:
    headers = {"location": f"{engine.url}/v1/models?a=%2Fb", "content-location": engine.url}
    engine.misbehave(status=307, headers=headers)
    answer = client.get("/v1/models/")
    assert answer.status_code == 307
    assert answer.headers["location"] == "/v1/models?a=%2Fb"
    assert answer.headers["content-location"] == "/"
    engine.behave()
    assert client.get("/v1/models/", follow_redirects=True).status_code == 200


def test_a_mounted_proxy_redirects_below_its_own_path(engine: FakeEngine) -> None:
    engine.misbehave(status=307, headers={"location": "/v1/models"})
    proxy = create_app(proxy_settings(engine.url))
    app = Starlette(routes=[Mount("/rag", proxy)], lifespan=proxy.router.lifespan_context)
    with TestClient(app) as client:
        answer = client.get("/rag/v1/models/", follow_redirects=False)
    assert answer.headers["location"] == "/rag/v1/models"


@pytest.mark.parametrize(
    ("value", "backend_url", "expected"),
    [
        ("http://h:8000/v1/x?q#f", "http://h:8000", "/v1/x?q#f"),
        ("http://H:8000", "http://h:8000", "/"),
        ("//h:8000/v1/x", "http://h:8000", "/v1/x"),
        ("http://u:p@h:8000/x", "http://h:8000", "/x"),
        ("http://h/base/v1/x", "https://h/base", "/v1/x"),
        ("https://h:443/base", "https://h/base", "/"),
        ("http://h:80/other/x", "http://h/base", "/other/x"),
        ("http://h/basement", "http://h/base", "/basement"),
        ("/base/v1/x", "http://h/base", "/v1/x"),
        ("http://[::1]:8000/x", "http://[::1]:8000", "/x"),
        ("http://localhost:8000/x", "http://127.0.0.1:8000", "/x"),
        ("http://127.0.0.1:8001/x", "http://localhost:8000", "http://127.0.0.1:8001/x"),
        ("http://h//evil.example/x", "http://h", "/evil.example/x"),
        ("http://h/base//evil.example/x", "http://h/base", "/evil.example/x"),
        ("http://h/caf\u00e9", "http://h", "/caf\u00e9"),
        ("http://h:9000/x", "http://h:8000", None),
        ("https://elsewhere.example/x", "http://h:8000", None),
        ("x/y", "http://h/base", None),
        ("/v1/x", "http://h", None),
        ("?page=2", "http://h/base", None),
        ("mailto:a@h", "http://h", None),
        ("http://[broken", "http://h", None),
        ("http://h:x/", "http://h", None),
        ("", "http://h", None),
    ],
)
def test_only_an_address_of_the_backend_is_rewritten(
    value: str, backend_url: str, expected: str | None
) -> None:
    given = value.encode("latin-1")
    rewritten = client_location(given, backend_url=backend_url)
    assert rewritten == (given if expected is None else expected.encode("latin-1"))
