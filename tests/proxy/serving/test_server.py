"""Serving an ASGI application in a thread."""

import logging

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ragboost.errors import ConfigError
from ragboost.proxy.serving import serve_in_thread


async def hello(_request: object) -> PlainTextResponse:
    return PlainTextResponse("hello")


def test_application_is_served_until_the_block_ends() -> None:
    with serve_in_thread(Starlette(routes=[Route("/", hello)])) as url:
        assert httpx.get(url).text == "hello"
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_taken_port_is_named() -> None:
    app = Starlette(routes=[Route("/", hello)])
    with serve_in_thread(app) as url:
        port = int(url.rpartition(":")[2])
        with (
            pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"),
            serve_in_thread(app, port=port),
        ):
            pass


def test_the_servers_own_lines_have_the_format_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = logging.getLogger("uvicorn")
    monkeypatch.setattr(server, "handlers", [])
    monkeypatch.setattr(server, "propagate", True)
    with serve_in_thread(Starlette()):
        logging.getLogger("uvicorn.error").warning("from uvicorn")
    assert "from uvicorn" in caplog.messages
    assert server.handlers == []
