"""Documents share prefixes only behind the same text, and are planned together behind it."""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from ragboost.config import Settings
from ragboost.requests.formats import make_formats
from ragboost.requests.parsed_request import parse_request
from ragboost.requests.prompt_prefix import prompt_prefix
from ragboost.requests.wires.normal_form import EngineKind
from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.metrics import read_metric

TEXTS = [f"Document {i} tells of {i}. " * 40 for i in range(6)]


def in_object(*ids: int) -> dict[str, Any]:
    return {"ragboost": {"documents": [TEXTS[i] for i in ids]}}


def in_field(*ids: int) -> dict[str, Any]:
    return {"documents": [{"title": f"t{i}", "text": TEXTS[i]} for i in ids]}


def in_text(*ids: int) -> str:
    return "".join(f"<document>{TEXTS[i]}</document>\n" for i in ids)


def ask(url: str, *messages: tuple[str, Any], **fields: Any) -> httpx.Response:
    made = [{"role": role, "content": content} for role, content in messages]
    body = {"model": "m", "messages": made, **fields}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer


def predicted(answer: httpx.Response) -> int:
    return int(answer.headers["x-ragboost-cached-tokens-predicted"])


@pytest.mark.parametrize("documents", [in_object, in_field])
def test_documents_behind_other_instructions_are_not_taken_for_cached(
    proxy: ProxyServer, documents: Any
) -> None:
    def request(system: str, *ids: int) -> int:
        return predicted(ask(proxy.url, ("system", system), ("user", "why?"), **documents(*ids)))

    assert request("Be brief.", 0, 1, 2) == 0
    assert request("Be long.", 2, 0, 1) == 0
    assert request("Be brief.", 2, 0, 1) > 500
    assert request("Be long.", 1, 2, 0) > 500


@pytest.mark.parametrize("documents", [in_object, in_field])
def test_other_tools_are_another_text_before_the_documents(
    proxy: ProxyServer, documents: Any
) -> None:
    def request(name: str) -> int:
        tools = [{"type": "function", "function": {"name": name, "parameters": {}}}]
        return predicted(ask(proxy.url, ("user", "why?"), tools=tools, **documents(0, 1)))

    assert [request("search") > 0, request("read") > 0, request("search") > 0] == [
        False,
        False,
        True,
    ]


def test_an_image_before_the_documents_counts_too(proxy: ProxyServer) -> None:
    def request(url: str) -> int:
        image = {"type": "image_url", "image_url": {"url": url}}
        content = [image, {"type": "text", "text": "why?"}]
        return predicted(ask(proxy.url, ("user", content), **in_object(0, 1)))

    assert [request(url) > 0 for url in ("data:one", "data:two", "data:one")] == [
        False,
        False,
        True,
    ]


def test_a_later_turn_knows_the_text_before_its_first_documents(
    proxy: ProxyServer, engine: FakeEngine
) -> None:
    first = (("system", "Be brief."), ("user", "why?"))
    named = {"session_id": "prefix"}
    said = ask(proxy.url, *first, **in_object(0, 1), **named).json()["choices"][0]["message"][
        "content"
    ]
    again = (*first, ("assistant", said), ("user", "how?"))
    answer = ask(proxy.url, *again, **in_object(1, 2, 0), **named)
    assert 0.8 * engine.requests[-1].cached_tokens < predicted(answer) > 400


def fronts(body: Mapping[str, Any], kind: EngineKind = "") -> str | None:
    raw = json.dumps(body).encode()
    request = parse_request(raw, [], formats=make_formats(Settings()), kind=kind)
    planned = request.leading(None)
    return None if planned is None else planned.prompt_prefix


def body_of(system: str, question: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return {"model": "m", "messages": messages, **fields}


@pytest.mark.parametrize("documents", [in_object(0, 1), in_field(0, 1), None])
def test_documents_behind_instructions_are_planned_under_the_name_of_these(documents: Any) -> None:
    question = in_text(0, 1) if documents is None else "why?"
    one, same, other = (
        fronts(body_of(system, question, **(documents or {}))) for system in ("A", "A", "B")
    )
    assert one
    assert one == same
    assert one != other


@pytest.mark.parametrize("name", ["tools", "functions"])
@pytest.mark.parametrize("documents", [in_object(0, 1), in_field(0, 1), None])
def test_documents_behind_other_tools_are_not_planned_together(name: str, documents: Any) -> None:
    question = in_text(0, 1) if documents is None else "why?"

    def named(*tools: str) -> str | None:
        given = {name: [{"name": tool} for tool in tools]}
        return fronts(body_of("A", question, **(documents or {}), **given))

    assert named("search") == named("search") != named("read")
    assert named("search") != named()


def test_nothing_before_the_documents_has_no_name() -> None:
    assert fronts({"prompt": "why?", **in_object(0, 1)}) == ""
    assert fronts({"messages": [{"role": "user", "content": "why?"}], **in_object(0, 1)}) == ""


@pytest.mark.parametrize("kind", ["object", "text"])
def test_waiting_requests_with_the_same_instructions_are_planned_together(
    engine: FakeEngine, kind: str
) -> None:
    """Each request has documents 0 and 1 and one of its own, which is the most relevant one."""
    engine.misbehave(hold=True)
    settings = proxy_settings(
        engine.url, waiting_room={"mode": "adaptive"}, backend={"max_concurrency": 1}
    )
    with ProxyServer(settings) as proxy:

        def request(own: int) -> None:
            order = (own, 0, 1) if own % 2 else (own, 1, 0)
            documents = {"object": in_object(*order), "field": in_field(*order)}.get(kind, {})
            question = "why?" if documents else in_text(*order) + "why?"
            ask(proxy.url, ("system", "Be brief."), ("user", question), **documents)

        with ThreadPoolExecutor(8) as pool:
            first = pool.submit(request, 2)  # while it runs, the others wait
            eventually(lambda: engine.num_active > 0)
            engine.behave()
            others = [pool.submit(request, own) for own in (3, 4, 5)]
            eventually(lambda: read_metric(proxy.url, "ragboost_queue_depth"), equals=3)
            engine.release()
            for done in (first, *others):
                done.result()
    later = [received.prompt for received in engine.completions[1:]]
    heads = {min(prompt.index(TEXTS[0]), prompt.index(TEXTS[1])) for prompt in later}
    own = [prompt.index(TEXTS[i]) for prompt in later for i in (3, 4, 5) if TEXTS[i] in prompt]
    assert len(heads) == 1
    assert all(at > max(heads) for at in own)


def behind_history(*, is_respelled: bool) -> dict[str, Any]:
    arguments = '{"a":1}' if is_respelled else '{"a": 1}'
    function = {"name": "f", "arguments": arguments}
    call: dict[str, Any] = {"role": "assistant", "content": None}
    call["tool_calls"] = [{"id": "t", "type": "function", "function": function}]
    question: Any = "Read it."
    if is_respelled:
        call = {**dict(reversed(call.items())), "refusal": None, "annotations": []}
        mark = {"cache_control": {"type": "ephemeral"}}
        question = [{"type": "text", "text": question, **mark}]
    messages = [{"role": "user", "content": question}, call]
    messages.append({"role": "tool", "tool_call_id": "t", "content": "Done."})
    messages.append({"role": "user", "content": "why?"})
    return {"model": "m", "messages": messages, **in_object(0, 1)}


def test_a_history_that_is_spelled_otherwise_is_the_same_text_before_the_documents() -> None:
    one, other = (behind_history(is_respelled=flag) for flag in (False, True))
    parsed = [
        parse_request(json.dumps(body).encode(), [], formats=make_formats(Settings()))
        for body in (one, other)
    ]
    prefixes = [
        prompt_prefix(each.body, each.shape, each.found)
        for each in parsed
        if each.shape is not None and each.found is not None
    ]
    assert len(prefixes) == 2
    assert prefixes[0] == prefixes[1] != ""


def test_documents_of_an_agent_whose_billing_line_changes_are_known_where_the_engine_drops_it() -> (
    None
):
    def front(number: int, kind: EngineKind) -> str | None:
        line = f"x-anthropic-billing-header: cch={number};"
        system = [{"type": "text", "text": text} for text in (line, "Be brief.")]
        messages = [{"role": "user", "content": in_text(0, 1)}]
        return fronts({"model": "m", "system": system, "messages": messages}, kind)

    assert front(1, "vllm") == front(2, "vllm")
    assert front(1, "sglang") != front(2, "sglang")
