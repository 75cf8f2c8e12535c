"""The short way to the hot endpoints changes nothing that one can see."""

import httpx
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from ragboost.proxy.app import create_app
from ragboost.proxy.serving import serve_in_thread
from tests.fakes import FakeEngine
from tests.fakes.proxy import proxy_settings

CHAT = {"model": "m", "messages": [{"role": "user", "content": "why?"}]}


class Counting:
    """Somebody's middleware."""

    def __init__(self, app: ASGIApp, paths: list[str]) -> None:
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._paths.append(scope["path"])
        await self._app(scope, receive, send)


def test_middleware_that_somebody_adds_sees_every_request(engine: FakeEngine) -> None:
    paths: list[str] = []
    app = create_app(proxy_settings(engine.url))
    app.add_middleware(Counting, paths=paths)
    with serve_in_thread(app) as url:
        for path in ("/v1/chat/completions", "/v1/models"):
            assert httpx.post(url + path, json=CHAT).status_code == 200
    assert paths == ["/v1/chat/completions", "/v1/models"]


def test_the_short_way_is_for_post_only(engine: FakeEngine) -> None:
    with serve_in_thread(create_app(proxy_settings(engine.url))) as url:
        assert httpx.get(f"{url}/v1/chat/completions").json()["method"] == "GET"
        answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT)
    assert answer.headers["x-ragboost-bypass"] == "no_documents"


def test_an_app_that_is_mounted_below_a_path_sends_the_backend_its_own_paths(
    engine: FakeEngine,
) -> None:
    app = create_app(proxy_settings(engine.url))
    outer = Starlette(routes=[Mount("/some where", app=app)], lifespan=app.router.lifespan_context)
    documents = ["First document. " * 9, "Second document. " * 9]
    with serve_in_thread(outer) as url, httpx.Client(base_url=f"{url}/some%20where") as client:
        answer = client.post(
            "/v1/chat/completions", json={**CHAT, "ragboost": {"documents": documents}}
        )
        assert answer.json()["choices"], answer.text
        assert client.get("/v1/models?a=b%20c").status_code == 200

    assert engine.completions[0].prompt.count("Second document. " * 9) == 1
    assert "/v1/models" in [received.path.partition("?")[0] for received in engine.requests]
