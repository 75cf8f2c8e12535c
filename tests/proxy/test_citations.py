"""Citations of the client's numbers: the answer, the history that is sent again, what is left."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.fakes.scripted import Reply, ScriptedEndpoint

TEXTS = [
    "The lease was signed by Ada in March, before the new owner of the house had moved in.",
    "Rent is due on the first of the month, by transfer, and a late one costs ten euros more.",
    "The boiler was replaced in autumn by a firm from the next town, which guarantees it.",
]
ORDERS = ([0, 1, 2], [2, 0, 1])  # the second list is sent in the order of the first
SYSTEM = {"role": "system", "content": "Answer from the documents and cite them, as [1]."}
LABEL = re.compile(r"^(?:Document |\[)(\d+)[\]:] (.*)$", re.MULTILINE)
CHAT = "/v1/chat/completions"


def listed(order: list[int], label: str = "[{}]") -> str:
    texts = [f"{label.format(n)} {TEXTS[i]}" for n, i in enumerate(order, 1)]
    return "<context>\n" + "\n\n".join(texts) + "\n</context>"


def asked(order: list[int], question: str = "Who signed?", label: str = "[{}]") -> dict[str, Any]:
    return {"role": "user", "content": f"{listed(order, label)}\n\nQuestion: {question}"}


def place_of(text: str, body: dict[str, Any]) -> int:
    """Return the number that the backend sees at a document."""
    for field in ("messages", "input"):
        if field in body:
            body = {"prompt": json.dumps(body[field], ensure_ascii=False).replace("\\n", "\n")}
    found = LABEL.finditer(body["prompt"])
    return next(int(label[1]) for label in found if label[2].startswith(text[:40]))


class Model:
    """Cites the document that it answers from by the number that it sees; `sent` is its text."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.as_reply: Any = None

    def __call__(self, body: dict[str, Any]) -> str | Reply:
        ada, rent = place_of(TEXTS[0], body), place_of(TEXTS[1], body)
        text = f"Ada signed it [{ada}]. It costs ten euros [{ada}, {rent}], `x[{ada}]`."
        self.sent.append(text)
        reply: str | Reply = self.as_reply(text) if self.as_reply else text
        return reply


CITED = "Ada signed it [2]. It costs ten euros [2, 3], `x[{}]`."  # of the second order
SENT = CITED.replace("[2, 3]", "[1, 2]").replace("[2]", "[1]").format(1)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def backend(model: Model) -> Iterator[ScriptedEndpoint]:
    with ScriptedEndpoint(model) as backend:
        yield backend


@pytest.fixture
def client(backend: ScriptedEndpoint) -> Iterator[httpx.Client]:
    with (
        ProxyServer(proxy_settings(backend.url)) as proxy,
        httpx.Client(base_url=proxy.url, timeout=60) as client,
    ):
        yield client


def ask(client: httpx.Client, *messages: Any, **fields: Any) -> httpx.Response:
    body = {"model": "m", "messages": [SYSTEM, *messages], **fields}
    response = client.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    return response


def text_of(response: httpx.Response) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


def test_an_answer_cites_the_clients_numbers_and_the_prompt_has_no_note(
    client: httpx.Client, backend: ScriptedEndpoint, model: Model
) -> None:
    ask(client, asked(ORDERS[0]))
    answer = text_of(ask(client, asked(ORDERS[1])))
    assert answer == CITED.format(1)
    assert model.sent[1] == SENT
    assert backend.bodies[1]["messages"] == backend.bodies[0]["messages"]


def test_a_stream_cites_the_clients_numbers_wherever_it_is_cut(
    client: httpx.Client, model: Model
) -> None:
    def streamed(text: str) -> Reply:
        events = [
            {"choices": [{"index": 0, "delta": {"content": c}, "finish_reason": None}]}
            for c in text
        ]
        events += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
        events += [{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}]
        body = "".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n"
        return Reply(200, {"content-type": "text/event-stream"}, body.encode())

    model.as_reply = streamed
    options = {"stream": True, "stream_options": {"include_usage": True}}
    plain = ask(client, asked(ORDERS[0]), **options)
    assert plain.content == streamed(model.sent[0]).body
    received = ask(client, asked(ORDERS[1]), **options)
    lines = [line[6:] for line in received.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    assert json.loads(lines[-2])["usage"] == {"prompt_tokens": 9, "completion_tokens": 3}
    events = [json.loads(line) for line in lines[:-2]]
    texts = [e["choices"][0]["delta"].get("content", "") for e in events]
    assert "".join(texts) == CITED.format(1)


@pytest.mark.parametrize("label", ["[{}]", "Document {}:"])
def test_a_history_is_sent_again_as_the_model_wrote_it(
    client: httpx.Client, backend: ScriptedEndpoint, model: Model, label: str
) -> None:
    ask(client, asked(ORDERS[0], label=label))
    messages = [asked(ORDERS[1], label=label)]
    for turn in range(3):
        answer = text_of(ask(client, *messages))
        assert answer == CITED.format(1)
        messages += [{"role": "assistant", "content": answer}]
        messages += [{"role": "user", "content": f"What else does [2] say, and [3]? {turn}"}]
    sent = [body["messages"] for body in backend.bodies[1:]]
    for turn, message in enumerate(model.sent[1:-1]):
        later = sent[turn + 1]
        assert later[: len(sent[turn])] == sent[turn]
        assert later[-2] == {"role": "assistant", "content": message}
        assert later[-1]["content"] == f"What else does [1] say, and [2]? {turn}"


def test_a_named_conversation_is_sent_again_byte_for_byte(
    client: httpx.Client, backend: ScriptedEndpoint, model: Model
) -> None:
    ask(client, asked(ORDERS[0]))
    messages = [asked(ORDERS[1])]
    for turn in range(3):
        answer = text_of(ask(client, *messages, session_id="one"))
        messages += [{"role": "assistant", "content": answer}]
        messages += [{"role": "user", "content": f"And [3]? {turn}"}]
    sent = [body["messages"] for body in backend.bodies[1:]]
    assert sent[1][: len(sent[0])] == sent[0]
    assert sent[2][: len(sent[1])] == sent[1]
    assert sent[2][2]["content"] == model.sent[1]


OTHERS = [f"{text} This was found out by another inspector, at length." for text in TEXTS[:2]]


@pytest.mark.parametrize(
    ("fields", "question"),
    [
        ({"ragboost": {"options": {"boost": False}}}, "And?"),
        ({"documents": [{"text": text} for text in OTHERS]}, "And?"),
        ({"ragboost": {"documents": OTHERS}}, "And?"),
        ({}, f"<document>{OTHERS[0]}</document> <document>{OTHERS[1]}"),
        ({}, "Which holds?\n1. yes\n2. no\n3. maybe"),
        ({"response_format": {"type": "json_object"}}, "And?"),
    ],
)
def test_a_moved_history_takes_its_numbers_along_whatever_a_later_turn_is(
    client: httpx.Client,
    backend: ScriptedEndpoint,
    model: Model,
    fields: dict[str, Any],
    question: str,
) -> None:
    ask(client, asked(ORDERS[0]))
    messages = [asked(ORDERS[1])]
    answer = {"role": "assistant", "content": text_of(ask(client, *messages))}
    messages += [answer, {"role": "user", "content": question}]
    for _ in range(2):
        later = ask(client, *messages, **fields)
        sent = backend.bodies[-1]["messages"]
        assert sent[:2] == backend.bodies[1]["messages"]
        assert sent[2] == {"role": "assistant", "content": model.sent[1]}
        assert text_of(later) == CITED.format(1)
    plain = ask(client, *messages, answer, {"role": "user", "content": "And [2]?"})
    sent = backend.bodies[-1]["messages"]
    assert sent[:3] == [*backend.bodies[1]["messages"], {**answer, "content": model.sent[1]}]
    assert [sent[4]["content"], sent[5]["content"]] == [model.sent[1], "And [1]?"]
    assert text_of(plain) == CITED.format(1)


@pytest.mark.parametrize("question", ["And?", listed([1, 2, 0]).replace("The ", "Then the ")])
@pytest.mark.parametrize("fields", [{}, {"text": {"format": {"type": "json_object"}}}])
def test_responses_send_a_history_again_as_it_was_sent(
    client: httpx.Client, backend: ScriptedEndpoint, question: str, fields: dict[str, Any]
) -> None:
    def send(*items: Any, **fields: Any) -> list[Any]:
        body = {"model": "m", "store": False, "input": [SYSTEM, *items], **fields}
        assert client.post("/v1/responses", json=body).status_code == 200
        return list(backend.bodies[-1]["input"])

    send(asked(ORDERS[0]))
    sent = send(asked(ORDERS[1]))
    assert sent == [SYSTEM, asked(ORDERS[0])]
    later = [{"role": "assistant", "content": "It is [2]."}, {"role": "user", "content": question}]
    again = send(asked(ORDERS[1]), *later, **fields)
    assert again[:3] == [*sent, {"role": "assistant", "content": "It is [1]."}]
    assert send(asked(ORDERS[1]), *later, store=True)[:2] == [SYSTEM, asked(ORDERS[1])]


def test_a_second_list_in_a_later_turn_has_its_own_numbers(
    client: httpx.Client, backend: ScriptedEndpoint
) -> None:
    ask(client, asked(ORDERS[0]))
    first = asked(ORDERS[1])
    answer = {"role": "assistant", "content": text_of(ask(client, first))}
    later = asked([1, 2, 0], "Who [1]?")
    later["content"] = later["content"].replace("The ", "Then the ")
    ask(client, first, answer, later)
    sent = backend.bodies[-1]["messages"]
    assert sent[:2] == backend.bodies[-2]["messages"]
    assert sent[2]["content"] == SENT
    assert "Who [1]?" in sent[3]["content"]


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": True},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "cited"}}},
        {"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "cite"}}]},
    ],
)
def test_documents_stay_where_the_answer_cannot_be_mapped(
    client: httpx.Client, backend: ScriptedEndpoint, fields: dict[str, Any]
) -> None:
    ask(client, asked(ORDERS[0]))
    response = ask(client, asked(ORDERS[1]), **fields)
    assert backend.bodies[1]["messages"] == [SYSTEM, asked(ORDERS[1])]
    assert response.headers["x-ragboost-bypass"] == "numbered_documents"
    assert text_of(response).startswith("Ada signed it [2]. ")


def test_two_numbered_lists_of_one_request_stay(
    client: httpx.Client, backend: ScriptedEndpoint
) -> None:
    ask(client, asked(ORDERS[0]))
    other = listed([0, 1, 2]).replace("The ", "Then the ").replace("Rent", "A rent")
    first = {"role": "system", "content": f"Cite them.\n{listed(ORDERS[1], 'Document {}:')}"}
    messages = [first, {"role": "user", "content": f"{other}\n\nAnd now?"}]
    response = ask(client, *messages)
    assert backend.bodies[1]["messages"] == [SYSTEM, *messages]
    assert response.headers["x-ragboost-bypass"] == "numbered_documents"


def test_a_question_before_the_documents_that_names_one_keeps_their_order(
    client: httpx.Client, backend: ScriptedEndpoint
) -> None:
    ask(client, asked(ORDERS[0]))
    message = {"role": "user", "content": f"Who signed [2]?\n\n{listed(ORDERS[1])}"}
    ask(client, message)
    assert backend.bodies[1]["messages"][1] == message


def test_an_instruction_behind_the_documents_stays_as_it_is(
    client: httpx.Client, backend: ScriptedEndpoint
) -> None:
    ask(client, asked(ORDERS[0]))
    cited = "Who signed?\n- Cite as [1][2]."
    answer = text_of(ask(client, asked(ORDERS[1], cited)))
    assert backend.bodies[1]["messages"][1]["content"].endswith(cited)
    later = {"role": "user", "content": "What does [2] say?\n- Cite as [1][2]."}
    ask(client, asked(ORDERS[1], cited), {"role": "assistant", "content": answer}, later)
    text = backend.bodies[2]["messages"][-1]["content"]
    assert text == "What does [1] say?\n- Cite as [1][2]."


@pytest.mark.parametrize(
    "named",
    [
        *("Is [2] a draft?", "Compare documents 1 and 2.", "Prefer Doc #2.", "Trust source id=2."),
        *("Is x [2] or [1, 2]?", "See Document 2 of my own lease."),
    ],
)
def test_documents_stay_in_the_turn_in_which_the_client_names_one(
    client: httpx.Client, backend: ScriptedEndpoint, named: str
) -> None:
    ask(client, asked(ORDERS[0]))
    message = asked(ORDERS[1])
    above = {"role": "user", "content": f"{named}\n\n{message['content']}"}
    for messages in ([above], [asked(ORDERS[1], named)], [{**SYSTEM, "content": named}, message]):
        response = ask(client, *messages)
        assert backend.bodies[-1]["messages"][1:] == messages
        assert response.headers["x-ragboost-bypass"] == "numbered_documents"


@pytest.mark.parametrize(
    "question",
    [
        "Now solve for x = [1, 2, 3].",
        "Fix it:\n```py\na = [1, 2]\nprint(a, [3])\n```",
        '{"ids": [1, 2], "see": "[3]"}',
        "matrix [[1, 2], [3, 1]], the vector [1, 2] and the interval [1, 3]",
        "- [x] a\n- [1] b\nsee Document 2 of my tax return",
        "My abstract: 'As shown in [1] and [3], sites differ [2].' Improve the style.",
        "I attach my own Document 2.",
        "Proofread: As shown in [3], water is wet.",
        "Fix this sentence: The results of [1] and Document 2 differ.",
    ],
)
def test_what_is_no_question_about_a_document_stays_in_later_turns(
    client: httpx.Client, backend: ScriptedEndpoint, question: str
) -> None:
    ask(client, asked(ORDERS[0], label="Document {}:"))
    first = asked(ORDERS[1], label="Document {}:")
    answer = {"role": "assistant", "content": text_of(ask(client, first))}
    ask(client, first, answer, {"role": "user", "content": question})
    assert backend.bodies[-1]["messages"][:2] == backend.bodies[-2]["messages"]
    assert backend.bodies[-1]["messages"][-1]["content"] == question


def test_arguments_of_tools_and_answers_that_are_no_json_pass(
    client: httpx.Client, model: Model
) -> None:
    ask(client, asked(ORDERS[0]))
    call = {"function": {"name": "f", "arguments": '{"documents": [1]}'}}
    choice = {"message": {"role": "assistant", "content": None, "tool_calls": [call]}}
    body = json.dumps({"choices": [choice]}).encode()
    model.as_reply = lambda text: Reply(200, {}, body)
    assert ask(client, asked(ORDERS[1])).content == body
    model.as_reply = lambda text: Reply(200, {"content-type": "text/plain"}, b"[1] is no JSON")
    assert ask(client, asked(ORDERS[1])).content == b"[1] is no JSON"


def test_a_text_completion_and_the_other_apis_are_mapped(
    client: httpx.Client, model: Model
) -> None:
    def completion(text: str) -> Reply:
        return Reply(200, {}, json.dumps({"choices": [{"index": 0, "text": text}]}).encode())

    def anthropic(text: str) -> Reply:
        content = [{"type": "text", "text": text}]
        return Reply(200, {}, json.dumps({"type": "message", "content": content}).encode())

    def responses(text: str) -> Reply:
        content = [{"type": "output_text", "text": text}]
        item = {"type": "message", "role": "assistant", "content": content}
        return Reply(200, {}, json.dumps({"output": [item]}).encode())

    def both(path: str, first: dict[str, Any], second: dict[str, Any], reply: Any) -> str:
        model.as_reply = reply
        bodies = [{"model": "m", **first}, {"model": "m", **second}]
        return [client.post(path, json=body) for body in bodies][1].text

    prompts = [f"Cite [n].\n{listed(o)}\n\nQuestion: Who?\nAnswer:" for o in ORDERS]
    parts = both("/v1/completions", {"prompt": prompts[0]}, {"prompt": prompts[1]}, completion)
    assert json.loads(parts)["choices"][0]["text"] == CITED.format(1)
    users: list[dict[str, Any]] = [{"messages": [asked(o)], "system": "Cite [n]."} for o in ORDERS]
    parts = both("/v1/messages", users[0], users[1], anthropic)
    assert json.loads(parts)["content"][0]["text"] == CITED.format(1)
    inputs: list[dict[str, Any]] = [{"input": [SYSTEM, asked(o)], "store": False} for o in ORDERS]
    parts = both("/v1/responses", inputs[0], inputs[1], responses)
    assert json.loads(parts)["output"][0]["content"][0]["text"] == CITED.format(1)


def test_sessions_keep_the_clients_numbers(
    client: httpx.Client, backend: ScriptedEndpoint, model: Model
) -> None:
    ask(client, asked(ORDERS[0]))
    session = client.post("/v1/sessions", json={"system": SYSTEM["content"]}).json()["id"]
    url = f"/v1/sessions/{session}/chat/completions"
    turn = client.post(url, json={"model": "m", "messages": [asked(ORDERS[1])]})
    assert text_of(turn) == CITED.format(1)
    client.post(url, json={"model": "m", "messages": [{"role": "user", "content": "And [3]?"}]})
    stored = client.get(f"/v1/sessions/{session}").json()["messages"]
    assert next(m["content"] for m in stored if m["role"] == "assistant") == CITED.format(1)
    assert backend.bodies[-1]["messages"][2]["content"] == model.sent[1]
    assert backend.bodies[-1]["messages"][3]["content"] == "And [2]?"
