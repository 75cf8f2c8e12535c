"""Hosted APIs are told what is shared, by the marks they know, and the caller's marks stay."""

from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings

DOCUMENTS = {
    name: {"id": name, "text": f"{name} says nothing of the kind. " * 20} for name in "ABCD"
}


def send(style: str, *bodies: dict[str, Any], path: str) -> list[dict[str, Any]]:
    """What the backend gets."""
    with FakeEngine() as engine:
        settings = proxy_settings(engine.url)
        backend = settings.backend.model_copy(update={"cache_marks": style})
        with ProxyServer(settings.model_copy(update={"backend": backend})) as proxy:
            for body in bodies:
                assert httpx.post(proxy.url + path, json=body).status_code == 200
        return [r.json for r in engine.requests if r.path == path]


def chat(names: str, **fields: Any) -> dict[str, Any]:
    documents = [DOCUMENTS[name] for name in names]
    messages = [{"role": "user", "content": "why?"}]
    return {"model": "m", "messages": messages, "ragboost": {"documents": documents}, **fields}


def block(name: str) -> dict[str, Any]:
    source = {"type": "text", "media_type": "text/plain", "data": DOCUMENTS[name]["text"]}
    return {"type": "document", "source": source, "title": name}


def blocks(names: str, **fields: Any) -> dict[str, Any]:
    content = [*map(block, names), {"type": "text", "text": "why?"}]
    return {"model": "m", "messages": [{"role": "user", "content": content}], **fields}


def marked(body: dict[str, Any]) -> list[str]:
    content = body["messages"][0]["content"]
    return [each["title"] for each in content if each.get("cache_control")]


def test_requests_with_the_same_first_document_share_a_key() -> None:
    first, second, other, own = send(
        "openai",
        chat("ABC"),
        chat("DBA"),
        chat("CD"),
        chat("AB", prompt_cache_key="theirs"),
        path="/v1/chat/completions",
    )
    assert first["prompt_cache_key"].startswith("ragboost-")
    assert second["prompt_cache_key"] == first["prompt_cache_key"]
    assert other["prompt_cache_key"] != first["prompt_cache_key"]
    assert own["prompt_cache_key"] == "theirs"


def test_a_breakpoint_ends_the_documents_that_were_sent_before() -> None:
    first, second = send("anthropic", blocks("ABC"), blocks("DBA"), path="/v1/messages")
    assert marked(first) == ["C"]
    titles = [each.get("title") for each in second["messages"][0]["content"][:3]]
    assert (titles, marked(second)) == (["A", "B", "D"], ["B"])


@pytest.mark.parametrize(
    "body",
    [
        blocks(
            "AB", system=[{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]
        ),
        blocks("AB", tools=[{"name": "t", "cache_control": {"type": "ephemeral"}}]),
        chat("AB"),  # documents and question are one text
    ],
)
def test_a_callers_breakpoint_is_the_only_one_and_a_question_is_never_marked(
    body: dict[str, Any],
) -> None:
    (sent,) = send("anthropic", body, path="/v1/messages")
    assert "cache_control" not in str(sent["messages"])
    assert str(sent).count("cache_control") == str(body).count("cache_control")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_nothing_is_marked_unless_it_is_asked_for(path: str) -> None:
    sent = send("none", chat("AB"), blocks("AB"), path=path)
    assert not any("cache_control" in str(each) or "prompt_cache_key" in each for each in sent)
