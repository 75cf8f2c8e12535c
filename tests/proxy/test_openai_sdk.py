"""The official SDK against the proxy, unchanged."""

from collections.abc import Iterator

import openai
import pytest

from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer

MESSAGES = [{"role": "user", "content": "why?"}]
BODY = {"ragboost": {"documents": ["one text", "another text"]}}


@pytest.fixture
def client(proxy: ProxyServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="key", max_retries=0) as client:
        yield client


def test_a_completion_parses(client: openai.OpenAI, engine: FakeEngine) -> None:
    answer = client.chat.completions.create(model="m", messages=MESSAGES, extra_body=BODY)  # type: ignore[arg-type]
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == engine.requests[-1].prompt_tokens
    assert engine.requests[-1].header("authorization") == "Bearer key"


def test_a_stream_parses_and_shows_no_usage_that_was_not_asked_for(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(  # type: ignore[call-overload]
            model="m", messages=MESSAGES, stream=True, extra_body=BODY
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_shows_usage_that_was_asked_for(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(  # type: ignore[call-overload]
            model="m",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=BODY,
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.prompt_tokens > 0


def test_models_and_completions_work(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake-model"]
    answer = client.completions.create(model="m", prompt="why?", extra_body=BODY)
    assert answer.choices[0].text


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (409, openai.ConflictError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
def test_backend_errors_raise_the_right_class(
    client: openai.OpenAI, engine: FakeEngine, status: int, error: type[openai.APIStatusError]
) -> None:
    engine.misbehave(status=status)
    with pytest.raises(error) as caught:
        client.chat.completions.create(model="m", messages=MESSAGES)  # type: ignore[arg-type]
    assert caught.value.status_code == status
    assert len(engine.requests) == 1


def test_our_own_errors_raise_the_right_class(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="m",
            messages=MESSAGES,  # type: ignore[arg-type]
            extra_body={"ragboost": {"documents": [{"text": 5}]}},
        )
    assert caught.value.param == "ragboost.documents[0].text"
    assert caught.value.request_id


def test_a_backend_that_is_gone_raises_an_internal_server_error(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.misbehave(drop=True)
    with pytest.raises(openai.InternalServerError, match="no response from the backend"):
        client.chat.completions.create(model="m", messages=MESSAGES)  # type: ignore[arg-type]


def test_a_stream_that_dies_raises_an_api_error(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.misbehave(die_after_chunks=3)
    stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)  # type: ignore[call-overload]
    with pytest.raises(openai.APIError, match="ended early"):
        list(stream)


def test_the_sdk_obeys_retry_after_of_the_backend(proxy: ProxyServer, engine: FakeEngine) -> None:
    engine.misbehave(status=429, headers={"x-should-retry": "false"})
    with (
        openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="key", max_retries=2) as client,
        pytest.raises(openai.RateLimitError),
    ):
        client.chat.completions.create(model="m", messages=MESSAGES)  # type: ignore[arg-type]
    assert len(engine.requests) == 1


def test_tools_pass_both_ways(client: openai.OpenAI, engine: FakeEngine) -> None:
    tools = [{"type": "function", "function": {"name": "search", "parameters": {}}}]
    answer = client.chat.completions.create(
        model="m",
        messages=MESSAGES,  # type: ignore[arg-type]
        tools=tools,  # type: ignore[arg-type]
        tool_choice="required",
    )
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert call.function.name == "search"
    result = {"role": "tool", "tool_call_id": call.id, "content": "nothing"}
    said = answer.choices[0].message.model_dump(exclude_none=True)
    client.chat.completions.create(model="m", messages=[*MESSAGES, said, result], tools=tools)  # type: ignore[list-item,arg-type]
    assert engine.requests[-1].json["messages"][2] == result
    assert engine.requests[-1].json["tools"] == tools


def test_images_stay_beside_documents(client: openai.OpenAI, engine: FakeEngine) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
    content = [image, {"type": "text", "text": "what is it?"}]
    client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": content}],  # type: ignore[typeddict-item,misc]
        extra_body=BODY,
    )
    sent = engine.requests[-1].json["messages"][0]["content"]
    assert sent[0] == image
    assert "one text" in sent[1]["text"]


def test_responses_work_whole_and_as_a_stream(client: openai.OpenAI, engine: FakeEngine) -> None:
    answer = client.responses.create(model="m", input="why?", instructions="Be brief.")
    assert answer.output_text
    assert answer.usage is not None
    assert answer.usage.input_tokens == engine.requests[-1].prompt_tokens
    with client.responses.stream(model="m", input="why?", instructions="Be brief.") as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(texts) == final.output_text == answer.output_text


def test_documents_in_the_input_of_responses_are_ordered(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    texts = [f"<document>Paper {i} tells of {i}. {'And more. ' * 9}</document>" for i in (0, 1)]
    for order in ((0, 1), (1, 0)):
        question = "\n".join(texts[i] for i in order) + "\nwhat?"
        client.responses.create(model="m", input=question)
    heads = [received.json["input"][:150] for received in engine.requests]
    assert heads[0] == heads[1]
