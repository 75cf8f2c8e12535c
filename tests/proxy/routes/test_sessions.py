"""The chat-session API: new turns in, whole histories out, nothing kept of failed turns."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.proxy.conversations.chats import (
    check_extends,
    check_hints_point_into_the_payload,
    contents,
    document,
    text_of,
)


@pytest.fixture(params=["memory", "sqlite"])
def client(
    request: pytest.FixtureRequest,
    start_proxy: Callable[..., ProxyServer],
    tmp_path: Path,
) -> Iterator[httpx.Client]:
    session = {"store": request.param, "path": tmp_path / "sessions.db"}
    with httpx.Client(base_url=start_proxy(session=session).url) as client:
        yield client


def create(client: httpx.Client, **fields: Any) -> str:
    answer = client.post("/v1/sessions", json={"model": "m", **fields})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def ask(client: httpx.Client, session: str, query: str, **fields: Any) -> httpx.Response:
    return client.post(f"/v1/sessions/{session}/chat/completions", json={"query": query, **fields})


def messages(client: httpx.Client, session: str) -> list[Any]:
    return list(client.get(f"/v1/sessions/{session}").json()["messages"])


def test_the_client_sends_new_turns_only_and_each_request_extends_the_last(
    client: httpx.Client, engine: FakeEngine
) -> None:
    session = create(client, system="Be brief.", metadata={"topic": "leases"})
    first = ask(client, session, "one?", documents=[document(1), document(2)])
    second = ask(client, session, "two?", documents=[document(2), document(3)], temperature=0.5)
    third = ask(client, session, "three?")
    received = engine.completions
    assert [r.path for r in received] == ["/v1/chat/completions"] * 3
    check_extends(received[1], received[0])
    check_extends(received[2], received[1])
    check_hints_point_into_the_payload(received[1])
    assert contents(received[0])[0] == "Be brief."
    assert received[1].json["temperature"] == 0.5
    assert received[1].json["model"] == "m"
    assert "Please refer to [Doc_2] in the previous conversation" in contents(received[1])[-1]
    assert text_of(2) not in contents(received[1])[-1]
    assert "ragboost" not in received[1].json
    answers = [a.json()["choices"][0]["message"]["content"] for a in (first, second, third)]
    kept = messages(client, session)
    assert [m["content"] for m in kept] == [
        "Be brief.", "one?", answers[0], "two?", answers[1], "three?", answers[2],
    ]  # fmt: skip
    head = client.get(f"/v1/sessions/{session}").json()
    assert (head["num_turns"], head["metadata"]) == (3, {"topic": "leases"})


def test_a_streamed_answer_is_kept_too(client: httpx.Client, engine: FakeEngine) -> None:
    session = create(client)
    with client.stream(
        "POST",
        f"/v1/sessions/{session}/chat/completions",
        json={"messages": [{"role": "user", "content": "one?"}], "stream": True},
    ) as answer:
        for line in answer.iter_lines():
            if "[DONE]" in line:
                break  # and leave without reading to the end, as SDKs do
    ask(client, session, "two?")
    before, after = engine.completions[0], engine.completions[1]
    assert after.prompt.startswith(before.prompt)
    assert len(after.json["messages"][1]["content"].split()) == 4


def test_an_agent_sends_tool_results_as_turns(client: httpx.Client, engine: FakeEngine) -> None:
    session = create(client)
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    body = httpx.Response(200, json={"choices": [{"index": 0, "message": message}]}).content
    engine.misbehave(status=200, body=body)
    ask(client, session, "do it", documents=[document(1)])
    engine.behave()
    result = {"role": "tool", "tool_call_id": "c1", "content": "result"}
    client.post(f"/v1/sessions/{session}/chat/completions", json={"messages": [result]})
    first, second = engine.completions
    check_extends(second, first)
    assert second.json["messages"][1:] == [message, result]
    assert [m["role"] for m in messages(client, session)] == [
        "user", "assistant", "tool", "assistant",
    ]  # fmt: skip


def test_the_openai_sdk_can_talk_to_a_session(client: httpx.Client, engine: FakeEngine) -> None:
    session = create(client)
    sdk = openai.OpenAI(base_url=f"{client.base_url}/v1/sessions/{session}", api_key="k")
    with sdk, pytest.raises(openai.NotFoundError):  # made without this key
        sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "a?"}])
    headers = {"authorization": "Bearer k"}
    session = client.post("/v1/sessions", json={}, headers=headers).json()["id"]
    with openai.OpenAI(base_url=f"{client.base_url}/v1/sessions/{session}", api_key="k") as sdk:
        for at in range(3):
            stream = sdk.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": f"{at}?"}],
                stream=True,
                extra_body={"documents": [document(at), document(0)]},
            )
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    for old, new in pairwise(engine.completions):
        check_extends(new, old)
    assert len(engine.completions[-1].json["messages"]) == 5


def test_a_failed_turn_leaves_the_session_as_it_was(
    client: httpx.Client, engine: FakeEngine
) -> None:
    session = create(client)
    ask(client, session, "one?", documents=[document(1)])
    before = client.get(f"/v1/sessions/{session}").json()
    faults: list[dict[str, Any]] = [{"status": 500}, {"drop": True}, {"die_after_chunks": 2}]
    for fault in faults:
        engine.misbehave(**fault)
        with contextlib.suppress(httpx.RemoteProtocolError):
            ask(client, session, "two?", documents=[document(2)], stream=True)
        engine.behave()
        assert client.get(f"/v1/sessions/{session}").json() == before
    ask(client, session, "two, again?", documents=[document(2), document(1)])
    last = engine.completions[-1]
    assert text_of(2) in contents(last)[-1]
    assert len(contents(last)) == 3
    check_hints_point_into_the_payload(last)


def test_a_client_that_leaves_in_the_stream_leaves_no_turn(
    client: httpx.Client, engine: FakeEngine
) -> None:
    session = create(client)
    engine.misbehave(hold_after_chunks=1)
    path = f"/v1/sessions/{session}/chat/completions"
    with client.stream("POST", path, json={"query": "one?", "stream": True}) as answer:
        next(answer.iter_bytes())
    eventually(lambda: engine.num_cancelled, equals=1)
    engine.behave()
    assert messages(client, session) == []
    assert ask(client, session, "two?").status_code == 200
    assert contents(engine.completions[-1]) == ["two?"]


def test_a_second_turn_at_the_same_time_is_a_conflict(
    client: httpx.Client, engine: FakeEngine
) -> None:
    session = create(client)
    engine.misbehave(hold=True)
    first = threading.Thread(target=ask, args=(client, session, "one?"))
    first.start()
    eventually(lambda: engine.num_active, equals=1)
    second = ask(client, session, "two?")
    engine.release()
    first.join()
    assert second.status_code == 409
    assert "answering another turn" in second.json()["error"]["message"]
    engine.behave()
    assert ask(client, session, "three?").status_code == 200
    assert [m["content"] for m in messages(client, session)][::2] == ["one?", "three?"]


def test_sessions_belong_to_their_credentials(client: httpx.Client) -> None:
    alice = {"authorization": "Bearer alice"}
    session = client.post("/v1/sessions", json={"user": "u"}, headers=alice).json()["id"]
    paths = [("GET", ""), ("DELETE", ""), ("POST", "/chat/completions")]
    for headers in ({}, {"authorization": "Bearer bob"}):
        for method, path in paths:
            answer = client.request(
                method, f"/v1/sessions/{session}{path}", headers=headers, content=b"{}"
            )
            assert answer.status_code == 404
            assert session in answer.json()["error"]["message"]
        listed = client.get("/v1/sessions", params={"user": "u"}, headers=headers)
        assert listed.json()["data"] == []
    assert client.get(f"/v1/sessions/{session}", headers=alice).status_code == 200


def test_sessions_are_listed_newest_first_in_pages_and_deleted(client: httpx.Client) -> None:
    def listed(**params: str | int) -> httpx.Response:
        return client.get("/v1/sessions", params={"user": "u", **params})

    ids = [create(client, user="u", metadata={"n": str(n)}) for n in range(5)]
    first = listed(limit=2).json()
    assert [s["id"] for s in first["data"]] == [ids[4], ids[3]]
    assert first["data"][0]["user"] == "u"
    assert first["has_more"]
    rest = listed(limit=3, after=first["last_id"]).json()
    assert [s["id"] for s in rest["data"]] == [ids[2], ids[1], ids[0]]
    assert not rest["has_more"]
    assert client.delete(f"/v1/sessions/{ids[2]}").json()["deleted"]
    assert client.delete(f"/v1/sessions/{ids[2]}").status_code == 404
    assert len(listed().json()["data"]) == 4
    assert listed(after=ids[2]).status_code == 404
    for limit in ("0", "101", "x", "-1"):
        assert listed(limit=limit).status_code == 400


def test_nobody_is_given_a_list_of_other_users_sessions(client: httpx.Client) -> None:
    """Who shares a key, or needs none, could read the transcripts of the sessions in it."""
    alice, bob, nobody = create(client, user="alice"), create(client, user="bob"), create(client)
    for params in ({}, {"user": ""}):
        refused = client.get("/v1/sessions", params=params)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "user")
        assert not any(session in refused.text for session in (alice, bob, nobody))
    page = client.get("/v1/sessions", params={"user": "bob"}).json()
    assert [session["id"] for session in page["data"]] == [bob]
    assert client.get(f"/v1/sessions/{nobody}").json()["user"] is None
    for user in ("", "x" * 513, 5):
        assert client.post("/v1/sessions", json={"user": user}).status_code == 400


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0]"),
        ({"query": ""}, "query"),
        ({"query": 7}, "query"),
        ({"query": "q", "messages": []}, "query"),
        ({"query": "q", "documents": [{"text": 5}]}, "documents[0].text"),
        ({"query": "q", "documents": "d"}, "documents"),
        ({"query": "q", "documents": [], "ragboost": {}}, "documents"),
        ({"query": "q", "ragboost": {"session_id": "s"}}, "ragboost.session_id"),
        ({"query": "q", "ragboost": {"x": 1}}, "ragboost.x"),
        ({"messages": [{"role": "tool", "content": "r"}], "documents": ["d"]}, "messages"),
    ],
)
def test_a_malformed_turn_is_a_400_that_names_the_field(
    proxy: ProxyServer, engine: FakeEngine, body: dict[str, Any], param: str
) -> None:
    with httpx.Client(base_url=proxy.url) as client:
        session = create(client)
        answer = client.post(f"/v1/sessions/{session}/chat/completions", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
        assert messages(client, session) == []
    assert not engine.completions


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"a": 1}', b'{"system": 1}', b'{"metadata": []}'])
def test_a_malformed_session_is_a_400(proxy: ProxyServer, body: bytes) -> None:
    assert httpx.post(f"{proxy.url}/v1/sessions", content=body).status_code == 400


def test_sessions_expire(start_proxy: Callable[..., ProxyServer]) -> None:
    with httpx.Client(base_url=start_proxy(session={"ttl_s": 0.3}).url) as client:
        made = client.post("/v1/sessions", json={}).json()
        assert made["expires_at"] >= made["created_at"]
        path = f"/v1/sessions/{made['id']}"
        eventually(lambda: client.get(path).status_code, equals=404)


def test_sessions_survive_a_restart_of_the_proxy(engine: FakeEngine, tmp_path: Path) -> None:
    session = {"store": "sqlite", "path": tmp_path / "sessions.db"}
    ids: list[str] = []
    for run in range(3):
        with (
            ProxyServer(proxy_settings(engine.url, session=session)) as proxy,
            httpx.Client(base_url=proxy.url) as client,
        ):
            if not ids:
                ids.append(create(client, system="Be brief."))
            documents = [document(run), document(0)]
            assert ask(client, ids[0], f"{run}?", documents=documents).status_code == 200
            assert ask(client, ids[0], f"{run}, really?").status_code == 200
    received = engine.completions
    for old, new in pairwise(received):
        check_extends(new, old)
        check_hints_point_into_the_payload(new)
    assert received[-1].body.decode().count(text_of(0)) == 1
    assert len(contents(received[-1])) == 12


def test_two_proxies_on_one_file_do_not_overwrite_each_other(
    start_proxy: Callable[..., ProxyServer], engine: FakeEngine, tmp_path: Path
) -> None:
    session = {"store": "sqlite", "path": tmp_path / "sessions.db"}
    with (
        httpx.Client(base_url=start_proxy(session=session).url) as one,
        httpx.Client(base_url=start_proxy(session=session).url) as two,
    ):
        name = create(one)
        engine.misbehave(hold=True)
        with ThreadPoolExecutor(1) as thread:
            slow = thread.submit(ask, one, name, "slow?")
            eventually(lambda: engine.num_active, equals=1)
            engine.behave()
            ask(two, name, "fast?")
            engine.release()
            with pytest.raises(httpx.RemoteProtocolError):  # its turn is not stored
                slow.result()
        assert [m["content"] for m in messages(one, name)][::2] == ["fast?"]


TURN = st.tuples(
    st.sampled_from(["ask", "stream", "fail"]), st.lists(st.integers(0, 6), max_size=4)
)


@settings(max_examples=15, deadline=None)
@given(turns=st.lists(TURN, max_size=6))
def test_no_document_is_lost_or_sent_twice_whatever_fails(turns: list[Any]) -> None:
    with (
        FakeEngine() as engine,
        ProxyServer(proxy_settings(engine.url)) as proxy,
        httpx.Client(base_url=proxy.url) as client,
    ):
        session = create(client)
        last = None
        for action, ids in turns:
            engine.misbehave(status=503) if action == "fail" else engine.behave()
            documents = [document(i) for i in ids]
            ask(client, session, "q?", documents=documents, stream=action == "stream")
            received = engine.completions[-1]
            check_hints_point_into_the_payload(received)
            everything = "".join(contents(received))
            assert all(everything.count(text_of(i)) == 1 for i in ids)
            if last is not None:
                check_extends(received, last)
            last = received if action != "fail" else last


def answer_once(engine: FakeEngine, message: dict[str, Any], *, is_stream: bool) -> None:
    """Let the engine give an answer of its own to the next turn."""
    choice = {"index": 0, "delta" if is_stream else "message": message}
    body = json.dumps({"id": "c", "choices": [choice]}).encode()
    kind = "application/json"
    if is_stream:
        body, kind = b"data: " + body + b"\n\ndata: [DONE]\n\n", "text/event-stream"
    engine.misbehave(status=200, body=body, headers={"content-type": kind})


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_answer_is_sent_back_with_all_that_the_backend_said(
    client: httpx.Client, engine: FakeEngine, is_stream: bool
) -> None:
    session = create(client)
    message = {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "because",
        "reasoning_details": [{"type": "reasoning.text", "text": "b", "signature": "S"}],
        "extra_content": {"google": {"thought_signature": "S"}},
        "x_unknown": [1.5, {"a": "b"}],
    }
    answer_once(engine, message, is_stream=is_stream)
    ask(client, session, "one?", stream=is_stream)
    engine.behave()
    ask(client, session, "two?")
    assert engine.completions[-1].json["messages"][1] == message
    assert messages(client, session)[1] == message


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_a_client_that_sends_the_history_again_is_told_so(
    client: httpx.Client, engine: FakeEngine, system: str | None
) -> None:
    session = create(client, system=system)
    path = f"/v1/sessions/{session}/chat/completions"
    ask(client, session, "one?", documents=[document(1), document(2)])
    ask(client, session, "two?")
    history = messages(client, session)
    new = {"role": "user", "content": [{"type": "text", "text": "three?"}]}
    edited = [{**m, "content": "edited"} if m["role"] == "assistant" else m for m in history]
    respelled = [
        {**m, "content": [{"type": "text", "text": m["content"]}], "name": "x"} for m in history
    ]
    for resent in (history, edited, respelled, history[-1:], history[-2:], history[-3:]):
        answer = client.post(path, json={"messages": [*resent, new]})
        assert answer.status_code == 409
        assert f"send messages[{len(resent)}:] only" in answer.json()["error"]["message"]
        assert answer.json()["error"]["param"] == "messages"
    assert client.post(path, json={"messages": history}).status_code == 409
    assert messages(client, session) == history
    assert len(engine.completions) == 2
    assert client.post(path, json={"messages": [new]}).status_code == 200


def test_examples_and_questions_asked_again_are_no_resent_history(
    client: httpx.Client, engine: FakeEngine
) -> None:
    session = create(client)
    path = f"/v1/sessions/{session}/chat/completions"
    examples = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2"},
    ]
    for question in ("2+2?", "2+2?", "3+3?"):
        turn = [*examples, {"role": "user", "content": question}]
        assert client.post(path, json={"messages": turn}).status_code == 200
    odd = {"role": "assistant", "content": 5, "tool_calls": {"id": 1}}
    assert client.post(path, json={"messages": [odd, examples[1]]}).status_code == 200
