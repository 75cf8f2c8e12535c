"""A `ragboost.graph` reaches the engine untouched, whatever the proxy does with the rest."""

import json
from typing import Any

import httpx
import pytest

from ragboost.batch.lines import LineParser
from ragboost.config import Settings
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings

GRAPH = {"paths": [["Ada", "wrote", "notes", "é", "x"]], "attention": "auto"}
DOCUMENTS = [{"id": "a", "text": "The lease runs. " * 8}, {"id": "b", "text": "The rent. " * 8}]


@pytest.mark.parametrize(
    "ours",
    [
        {},
        {"documents": DOCUMENTS},
        {"documents": DOCUMENTS, "options": {"boost": False}},
        {"documents": DOCUMENTS, "session_id": "s"},
        {"session_id": "s"},
    ],
)
def test_the_graph_is_sent_on_as_it_came(ours: dict[str, Any]) -> None:
    body = {
        "model": "fake",
        "messages": [{"role": "user", "content": "Who wrote the notes?"}],
        "max_tokens": 2,
        "ragboost": {"graph": GRAPH, **ours},
    }
    with FakeEngine() as engine, ProxyServer(proxy_settings(engine.url)) as proxy:
        answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        sent = engine.completions[-1].json

    assert sent["ragboost"] == {"graph": GRAPH}
    assert ("The rent." in json.dumps(sent["messages"])) == ("documents" in ours)


def test_a_batch_line_keeps_its_graph() -> None:
    body = {
        "messages": [{"role": "user", "content": "Who?"}],
        "ragboost": {"graph": GRAPH, "documents": DOCUMENTS},
    }
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}

    parsed = LineParser(Settings()).parse(json.dumps(line).encode())

    assert parsed.write(None)["body"]["ragboost"] == {"graph": GRAPH}
