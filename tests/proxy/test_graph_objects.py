"""A `ragboost.graph` reaches an engine that reads it untouched, and all others as documents."""

import json
from typing import Any

import httpx
import pytest

from ragboost.batch.lines import LineParser
from ragboost.config import Settings
from ragboost.graph.request import path_text
from ragboost.requests.graph_documents import graph_as_documents
from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings

GRAPH = {"paths": [["Ada", "wrote", "notes", "é", "x"]], "attention": "auto"}
DOCUMENTS = [{"id": "a", "text": "The lease runs. " * 8}, {"id": "b", "text": "The rent. " * 8}]


PATHS = [
    ["Ada", "wrote", "notes"],
    ["Bob", "likes", "Ada", "wrote", "notes"],
    ["Ada", "knew", " Babbage "],
    ["Ada", "wrote", "notes"],
]


def body_with(graph: Any, **ours: Any) -> dict[str, Any]:
    return {
        "model": "fake",
        "messages": [{"role": "user", "content": "Who wrote the notes?"}],
        "max_tokens": 2,
        "ragboost": {"graph": graph, **ours},
    }


def sent_for(graph: Any, chunk_reuse: dict[str, Any] | None = None, **ours: Any) -> Any:
    """Return the engine's body, or the error of the proxy."""
    with (
        FakeEngine(chunk_reuse=chunk_reuse) as engine,
        ProxyServer(proxy_settings(engine.url)) as proxy,
    ):
        if chunk_reuse is not None:
            eventually(lambda: proxy.app.state.engines.is_supported)
        answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=body_with(graph, **ours))
        if answer.status_code == 400:
            return answer.json()["error"]
        assert answer.status_code == 200, answer.text
        return engine.completions[-1].json


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
    body = body_with(GRAPH, **ours)
    with (
        FakeEngine(chunk_reuse={"is_possible": True, "graphs": True}) as engine,
        ProxyServer(proxy_settings(engine.url)) as proxy,
    ):
        eventually(lambda: proxy.app.state.engines.reads_graphs)
        answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        sent = engine.completions[-1].json

    assert sent["ragboost"] == {"graph": GRAPH}
    assert ("The rent." in json.dumps(sent["messages"])) == ("documents" in ours)


def test_whether_graphs_are_read_is_asked_although_chunk_reuse_is_configured() -> None:
    with (
        FakeEngine(chunk_reuse={"is_possible": True, "ratio": 0.15, "graphs": True}) as engine,
        ProxyServer(proxy_settings(engine.url, backend={"reuse_chunks": False})) as proxy,
    ):
        probe = proxy.app.state.engines
        eventually(lambda: probe.reads_graphs)

    assert not probe.is_supported


def test_an_engine_without_graphs_gets_the_facts_as_documents() -> None:
    sent = sent_for({"paths": [*PATHS, ["Eve", "met", "Bob"]]}, documents=DOCUMENTS)

    text = sent["messages"][0]["content"]
    assert "ragboost" not in sent
    assert "Ada -wrote-> notes\nAda -knew-> Babbage" in text, "one document for each root"
    assert "Bob -likes-> Ada -wrote-> notes" in text
    assert "Eve -met-> Bob" in text
    assert "The rent." in text
    assert text.count("Ada -wrote-> notes") == 2, "of Ada, and within the path of Bob"
    assert text.endswith("Who wrote the notes?")


def test_the_facts_read_as_the_graph_room_writes_them() -> None:
    [document] = json.loads(
        graph_as_documents(json.dumps(body_with({"paths": [PATHS[1]]})).encode(), can_reuse=False)
    )["ragboost"]["documents"]

    assert document["text"] == path_text([tuple(PATHS[1])])


def test_subgraphs_are_chunks_that_are_not_recomputed() -> None:
    sent = sent_for({"paths": PATHS, "attention": "subgraphs"}, {"is_possible": True})

    ours, text = sent["ragboost"], sent["messages"][0]["content"]
    assert ours["reuse"] == {"ratio": 0}
    shown = [text[start:stop] for _, start, stop in ours["chunks"]]
    assert len(shown) == 2
    assert "Ada -wrote-> notes\nAda -knew-> Babbage" in shown[1], "the most relevant one is last"


@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        ({"paths": PATHS, "attention": "subgraphs"}, "needs a backend that reuses chunks"),
        ({"paths": PATHS, "attention": "dependency"}, "needs a backend that reads graphs"),
        ({"paths": PATHS, "triplets": PATHS}, "ragboost.graph.triplets is unknown"),
        ({"paths": [["a", "b"]]}, "ragboost.graph.paths[0] must be"),
        ({"paths": [[1, "b", "c"]]}, "ragboost.graph.paths[0] must be"),
        ({"paths": {"a": 1}}, "ragboost.graph.paths must be a list"),
        ({"paths": [["a", "b", " "]]}, "ragboost.graph.paths[0] must be"),
        ({"paths": []}, "must give from 1 to"),
        ({"paths": PATHS, "attention": 7}, "must be one of auto"),
        ({"path": PATHS}, "ragboost.graph.path is unknown"),
        ([PATHS], "ragboost.graph must be an object"),
    ],
)
def test_what_an_engine_without_graphs_cannot_do_is_a_400(graph: Any, problem: str) -> None:
    error = sent_for(graph)

    assert problem in error["message"]
    assert error["param"].startswith("ragboost.graph")


def test_a_batch_line_keeps_its_graph() -> None:
    body = {
        "messages": [{"role": "user", "content": "Who?"}],
        "ragboost": {"graph": GRAPH, "documents": DOCUMENTS},
    }
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}

    parsed = LineParser(Settings()).parse(json.dumps(line).encode())

    assert parsed.write(None)["body"]["ragboost"] == {"graph": GRAPH}
