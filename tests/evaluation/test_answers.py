"""Answers are asked for once, kept, and asked again where they failed or changed."""

import asyncio
import socket
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from ragboost.errors import (
    BackendConnectionError,
    BackendStatusError,
    BackendTimeoutError,
    ConfigError,
    RequestError,
)
from ragboost.evaluation.answers import AnswerFile, answer_key, ask_all
from ragboost.evaluation.arms import Messages
from ragboost.evaluation.endpoint import ChatEndpoint, RefusedEndpointError, RefusedPromptError
from tests.fakes import FakeEngine
from tests.fakes.scripted import Reply, ScriptedEndpoint

HELLO: Messages = (("user", "hello"),)


def question(number: int) -> Messages:
    return (("user", f"question {number}"),)


def text(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


@pytest.fixture
def answers(tmp_path: Path) -> AnswerFile:
    return AnswerFile(tmp_path / "answers.jsonl")


def ask(endpoint: ChatEndpoint) -> str:
    async def ask_and_close() -> str:
        async with aclosing(endpoint):
            return await endpoint.ask(HELLO)

    return asyncio.run(ask_and_close())


def wanted(endpoint: ChatEndpoint, count: int) -> dict[str, Messages]:
    return {answer_key(endpoint.payload(question(n))): question(n) for n in range(count)}


def test_an_endpoint_is_named_with_or_without_its_path(engine: FakeEngine) -> None:
    for url in (engine.url, f"{engine.url}/v1/", f"{engine.url}/v1/chat/completions"):
        assert ask(ChatEndpoint(url, model="m", max_tokens=3))
    body = engine.completions[0].json
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("m", 3, 0)


def test_fields_of_the_body_are_added_changed_and_removed_and_the_key_is_sent() -> None:
    with ScriptedEndpoint(lambda body: "yes") as server:
        changes = {"max_tokens": None, "max_completion_tokens": 9, "temperature": 1}
        ask(ChatEndpoint(server.url, model="m", api_key="k", body=changes))

    (body,) = server.bodies
    assert body == {
        "model": "m",
        "temperature": 1,
        "max_completion_tokens": 9,
        "messages": [{"role": "user", "content": "hello"}],
    }
    assert server.keys == ["Bearer k"]


@pytest.mark.parametrize("headers", [{"retry-after": "0"}, {"retry-after": "soon"}, {}])
def test_a_busy_endpoint_is_asked_again(headers: dict[str, str]) -> None:
    replies: list[str | Reply] = [Reply(429, headers), Reply(503, {"retry-after": "0"}), "yes"]
    with ScriptedEndpoint(lambda body: replies.pop(0)) as server:
        assert ask(ChatEndpoint(server.url, model="m")) == "yes"
    assert len(server.bodies) == 3


def test_a_busy_endpoint_is_asked_so_many_times_and_no_more() -> None:
    busy = Reply(429, {"retry-after": "0"}, b'{"error": {"message": "slow down"}}')
    with (
        ScriptedEndpoint(lambda body: busy) as server,
        pytest.raises(BackendStatusError, match="answered 429: slow down"),
    ):
        ask(ChatEndpoint(server.url, model="m", attempts=3))
    assert len(server.bodies) == 3


def test_an_endpoint_that_does_not_answer_in_time_is_asked_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        endpoint = ChatEndpoint(url, model="m", timeout_s=0.2)
        with pytest.raises(BackendTimeoutError, match=r"in 0\.2 s; --timeout"):
            ask(endpoint)
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_a_long_wait_can_be_cancelled() -> None:
    async def cancel_while_it_waits() -> None:
        async with aclosing(ChatEndpoint(server.url, model="m")) as endpoint:
            asking = asyncio.create_task(endpoint.ask(HELLO))
            while not server.bodies:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled()

    with ScriptedEndpoint(lambda body: Reply(429, {"retry-after": "3600"})) as server:
        asyncio.run(cancel_while_it_waits())


@pytest.mark.parametrize(
    ("reply", "error", "problem"),
    [
        (
            Reply(400, {}, b'{"error": {"message": "too long"}}'),
            RefusedPromptError,
            "400: too long",
        ),
        (Reply(401, {}, b"no key"), RefusedEndpointError, "401: no key"),
        (Reply(404), RefusedEndpointError, "404: no"),
        (Reply(200, {}, b"<html>"), RefusedPromptError, "no chat completion"),
        (Reply(200, {}, b'{"choices": []}'), RefusedPromptError, "no chat completion"),
    ],
)
def test_a_refusal_is_not_repeated(reply: Reply, error: type[Exception], problem: str) -> None:
    with (
        ScriptedEndpoint(lambda body: reply) as server,
        pytest.raises(error, match=problem),
    ):
        ask(ChatEndpoint(server.url, model="m"))
    assert len(server.bodies) == 1


@pytest.mark.parametrize("url", ["localhost:8000", "http://h:99999", "http://[::1", "ftp://h"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="must begin with http"):
        ChatEndpoint(url, model="m")


def test_a_run_goes_on_where_it_stopped_and_asks_equal_prompts_once(
    engine: FakeEngine, tmp_path: Path
) -> None:
    path, endpoint = tmp_path / "a.jsonl", ChatEndpoint(engine.url, model="m")
    steps: list[tuple[int, int]] = []
    for count, asked in ((3, 3), (5, 5), (5, 5)):
        file = AnswerFile(path)
        assert not asyncio.run(
            ask_all(
                ChatEndpoint(engine.url, model="m"),
                wanted(endpoint, count),
                file,
                concurrency=2,
                on_answer=lambda done, total: steps.append((done, total)),
            )
        )
        assert len(engine.completions) == asked
    assert steps == [(1, 3), (2, 3), (3, 3), (1, 2), (2, 2)]
    other = ChatEndpoint(engine.url, model="m", max_tokens=5)
    assert not wanted(other, 5).keys() & wanted(endpoint, 5).keys()


def test_a_torn_or_foreign_line_is_ignored_and_nothing_is_glued_to_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('[]\n{"key": "k", "text": "yes"}\n{"key": "t", "te')

    file = AnswerFile(path)
    file.add("new", "no")

    again = AnswerFile(path)
    assert ("k" in again, "t" in again, again["new"]) == (True, False, "no")


def test_answers_that_cannot_be_written_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot write"):
        AnswerFile(tmp_path / "missing" / "a.jsonl")


def test_one_refused_prompt_is_reported_and_the_others_are_answered(answers: AnswerFile) -> None:
    def reply(body: dict[str, Any]) -> str | Reply:
        return Reply(400) if text(body) == "question 2" else "yes"

    with ScriptedEndpoint(reply) as server:
        endpoint = ChatEndpoint(server.url, model="m")
        asked = wanted(endpoint, 6)
        failures = asyncio.run(ask_all(endpoint, asked, answers, concurrency=3))

    assert [asked[key] for key in failures] == [question(2)]
    assert sum(key in answers for key in asked) == 5


def test_an_endpoint_that_nobody_serves_is_told_at_once(
    answers: AnswerFile, unused_port: int
) -> None:
    endpoint = ChatEndpoint(f"http://127.0.0.1:{unused_port}", model="m")

    with pytest.raises(BackendConnectionError, match=r"cannot reach http://127\.0\.0\.1"):
        asyncio.run(ask_all(endpoint, wanted(endpoint, 3), answers, concurrency=2))


def test_a_wrong_key_costs_one_request(answers: AnswerFile) -> None:
    with ScriptedEndpoint(lambda body: Reply(401)) as server:
        endpoint = ChatEndpoint(server.url, model="m")
        with pytest.raises(RefusedEndpointError):
            asyncio.run(ask_all(endpoint, wanted(endpoint, 9), answers, concurrency=4))
    assert len(server.bodies) == 1


def test_an_endpoint_that_breaks_down_ends_the_run_and_keeps_the_answers(
    answers: AnswerFile,
) -> None:
    def reply(body: dict[str, Any]) -> str | Reply:
        return "yes" if int(text(body).split()[1]) < 10 else Reply(400)

    with ScriptedEndpoint(reply) as server:
        endpoint = ChatEndpoint(server.url, model="m")
        asked = wanted(endpoint, 100)
        with pytest.raises(BackendConnectionError, match=r"20 requests in a row failed.*run again"):
            asyncio.run(ask_all(endpoint, asked, answers, concurrency=1))

    assert sum(key in answers for key in asked) == 10
    assert len(server.bodies) == 30
