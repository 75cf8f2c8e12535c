"""`curl` against the proxy: plain HTTP, streams as they come, errors as JSON."""

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "why?"}]}


def curl(*arguments: str) -> str:
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "30", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_an_answer_and_the_headers_that_say_what_was_done(proxy: ProxyServer) -> None:
    body = {**BODY, "ragboost": {"documents": ["one text", "another text"]}}
    shown = curl(f"{proxy.url}/v1/chat/completions", "-i", "--json", json.dumps(body))
    head, _, answer = shown.partition("\n\n") if "\r" not in shown else shown.partition("\r\n\r\n")
    assert "x-ragboost-documents: 2" in head.lower()
    assert json.loads(answer)["choices"][0]["message"]["content"]


def test_a_stream_comes_as_it_was_sent(proxy: ProxyServer, engine: FakeEngine) -> None:
    body = json.dumps({**BODY, "stream": True})
    text = curl("-N", f"{proxy.url}/v1/chat/completions", "--json", body)
    assert text.encode() == b"".join(engine.stream_pieces(engine.requests[-1]))
    assert text.endswith("data: [DONE]\n\n")


def test_a_body_that_is_sent_in_chunks_and_expected_to_be_continued(
    proxy: ProxyServer, engine: FakeEngine
) -> None:
    body = json.dumps({**BODY, "padding": "x" * 100_000})
    headers = ("transfer-encoding: chunked", "expect: 100-continue", "content-type: text/json")
    flags = [flag for header in headers for flag in ("-H", header)]
    done = subprocess.run(
        ["curl", "-sS", *flags, "--data-binary", "@-", f"{proxy.url}/v1/chat/completions"],
        input=body,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["choices"]
    assert engine.requests[-1].body == body.encode()


def test_an_error_of_ours_is_json_with_its_status(proxy: ProxyServer) -> None:
    body = json.dumps({**BODY, "ragboost": {"documents": [{"text": 5}]}})
    shown = curl(f"{proxy.url}/v1/chat/completions", "--json", body, "-w", "\n%{http_code}")
    answer, status = shown.rsplit("\n", 1)
    assert status == "400"
    assert json.loads(answer)["error"]["param"] == "ragboost.documents[0].text"
