"""Anthropic's official SDK against the proxy, in front of an engine with /v1/messages."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer

MESSAGES: Any = [{"role": "user", "content": "why?"}]
TEXTS = ["Ada signed the lease in May. " * 20, "Rent is due on the first. " * 20]


@pytest.fixture
def client(proxy: ProxyServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=proxy.url, api_key="key", max_retries=0) as client:
        yield client


def blocks(*order: int) -> list[dict[str, Any]]:
    source = [{"type": "text", "media_type": "text/plain", "data": text} for text in TEXTS]
    return [{"type": "document", "source": source[i], "title": f"t{i}"} for i in order]


def test_a_message_parses(client: anthropic.Anthropic, engine: FakeEngine) -> None:
    answer = client.messages.create(model="m", max_tokens=9, messages=MESSAGES, system="Be brief.")
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    received = engine.requests[-1]
    cached = answer.usage.cache_read_input_tokens or 0
    assert answer.usage.input_tokens + cached == received.prompt_tokens
    assert received.header("authorization") == "Bearer key"
    assert received.json["system"] == "Be brief."


def test_documents_are_ordered_and_the_prefix_is_reused(
    client: anthropic.Anthropic, engine: FakeEngine
) -> None:
    for order in ((0, 1), (1, 0)):
        question = {"type": "text", "text": "Who signed?"}
        content: Any = [*blocks(*order), question]
        messages: Any = [{"role": "user", "content": content}]
        client.messages.create(model="m", max_tokens=9, messages=messages)
    sent = [received.json["messages"][0]["content"][:2] for received in engine.requests]
    assert sent[0] == sent[1] == blocks(0, 1)


def test_a_stream_parses(client: anthropic.Anthropic, engine: FakeEngine) -> None:
    with client.messages.stream(model="m", max_tokens=9, messages=MESSAGES) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text
    assert message.stop_reason == "end_turn"
    assert message.content[0].type == "text"
    assert message.content[0].text == text
    assert len(engine.requests) == 1


def test_tools_and_images_pass(client: anthropic.Anthropic, engine: FakeEngine) -> None:
    schema = {"type": "object", "properties": {"query": {"type": "string"}}}
    tools: Any = [{"name": "search", "description": "finds", "input_schema": schema}]
    image = {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}
    content: Any = [{"type": "image", "source": image}, {"type": "text", "text": "what is it?"}]
    messages: Any = [{"role": "user", "content": content}]
    answer = client.messages.create(
        model="m", max_tokens=9, messages=messages, tools=tools, tool_choice={"type": "any"}
    )
    call = answer.content[0]
    assert call.type == "tool_use"
    assert call.name == "search"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "nothing found"}
    said: Any = {"role": "assistant", "content": [call.model_dump()]}
    again: Any = [*messages, said, {"role": "user", "content": [result]}]
    client.messages.create(model="m", max_tokens=9, messages=again, tools=tools)
    assert engine.requests[0].json["messages"] == messages
    assert engine.requests[1].json["messages"][2]["content"] == [result]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, anthropic.BadRequestError),
        (401, anthropic.AuthenticationError),
        (403, anthropic.PermissionDeniedError),
        (404, anthropic.NotFoundError),
        (422, anthropic.UnprocessableEntityError),
        (429, anthropic.RateLimitError),
        (500, anthropic.InternalServerError),
    ],
)
def test_backend_errors_raise_the_right_class(
    client: anthropic.Anthropic,
    engine: FakeEngine,
    status: int,
    error: type[anthropic.APIStatusError],
) -> None:
    engine.misbehave(status=status)
    with pytest.raises(error) as caught:
        client.messages.create(model="m", max_tokens=9, messages=MESSAGES)
    assert caught.value.status_code == status
    assert len(engine.requests) == 1


def test_a_backend_that_is_gone_raises_an_internal_server_error(
    client: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.misbehave(drop=True)
    with pytest.raises(anthropic.InternalServerError, match="no response from the backend"):
        client.messages.create(model="m", max_tokens=9, messages=MESSAGES)
