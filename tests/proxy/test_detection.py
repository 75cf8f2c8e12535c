"""One detection per request, the same in header, receipt, logs, metrics and dashboard."""

import json
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.eventually import eventually
from tests.fakes.proxy import ProxyServer
from tests.metrics import read_metric

CHAT = "/v1/chat/completions"
TEXTS = [f"Document {name} tells of the {name} and of nothing else. " * 4 for name in "abc"]
TAGS = "".join(f"<passage>\n{text}\n</passage>\n" for text in TEXTS) + "\nWhy?"
QUOTED = TAGS.replace("tells of the b", "has a </passage> and tells of the b", 1)
PAGES = "".join(f"<passage page='{n}'>\n{t}\n</passage>\n" for n, t in enumerate(TEXTS, 4)) + "Why?"
JOINED = "Use the following context.\n\n" + "\n\n".join(text * 2 for text in TEXTS) + "\n\nWhy?"

Body = dict[str, Any]
StartProxy = Callable[..., ProxyServer]


def chat(*texts: str, **fields: Any) -> Body:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    return {"model": "m", "messages": messages, **fields}


def accessed(caplog: pytest.LogCaptureFixture) -> list[Body]:
    lines = [r.getMessage() for r in caplog.records if r.name == "ragboost.access"]
    return [line for line in map(json.loads, lines) if line["endpoint"] == "chat"]


CASES = {
    "found": (chat(TAGS), "tags", 3),
    "nothing_to_do": (chat("Hello.", "Hello!", TAGS), "", 3),
    "ambiguous_documents": (chat(QUOTED), "tags", 0),
    "ordered_documents": (chat(PAGES), "tags", 0),
    "unmarked_documents": (chat(JOINED), "", 0),
    "no_documents": (chat("Why? " * 500), "", 0),
}


@pytest.mark.parametrize("name", CASES)
def test_a_detection_is_the_same_wherever_it_is_said(
    start_proxy: StartProxy, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    body, frame, num = CASES[name]
    url = start_proxy(proxy={"receipts": True, "access_log": True}).url

    answers = [httpx.post(url + CHAT, json=body) for _ in range(2)]

    headers, receipt = answers[0].headers, json.loads(answers[0].headers["x-ragboost-receipt"])
    assert headers.get("x-ragboost-bypass") == (None if name == "found" else name)
    assert (headers.get("x-ragboost-frame", ""), headers["x-ragboost-documents"]) == (
        frame,
        str(num),
    )
    assert (receipt["detection"], receipt.get("frame", ""), receipt["documents"]) == (
        name,
        frame,
        num,
    )
    assert read_metric(url, "ragboost_detections_total", detection=name, frame=frame) == 2
    data = httpx.get(f"{url}/dashboard/data").json()
    assert [(o["reason"], o["requests"], bool(o["advice"])) for o in data["not_boosted"]] == [
        (name, 2, True) for _ in range(name != "found")
    ]
    assert bool(data["recent"][0]["advice"]) == (name != "found")
    assert (data["recent"][0]["detection"], data["recent"][0]["frame"] or "") == (name, frame)
    lines = [r for r in caplog.records if r.name.endswith("log_lines")]
    assert len(lines) == 1
    eventually(lambda: len(accessed(caplog)) == 2)  # written behind the responses
    shown = accessed(caplog)
    assert [(line["detection"], line["frame"] or "") for line in shown] == [(name, frame)] * 2
    assert [line["outcome"] for line in shown] == ["ok"] * 2


def test_small_requests_without_documents_are_no_news(
    start_proxy: StartProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    url = start_proxy().url
    httpx.post(url + CHAT, json=chat("Hello."))
    assert not [r for r in caplog.records if r.name.endswith("log_lines")]
    httpx.post(url + CHAT, json=chat("Why? " * 500))
    assert [r for r in caplog.records if r.name.endswith("log_lines")]


def test_a_document_that_is_not_boosted_was_found_all_the_same(start_proxy: StartProxy) -> None:
    url = start_proxy().url
    documents = {"documents": TEXTS, "options": {"boost": False}}

    answer = httpx.post(url + CHAT, json=chat("Why?", ragboost=documents))

    assert answer.headers["x-ragboost-bypass"] == "option"
    assert answer.headers["x-ragboost-frame"] == "ragboost object"
    assert read_metric(url, "ragboost_detections_total", detection="found") == 1


def test_no_tag_of_a_client_becomes_a_label_a_header_or_a_field(start_proxy: StartProxy) -> None:
    url = start_proxy(proxy={"access_log": True}).url
    text = TAGS.replace("passage", "hiddenword")

    answer = httpx.post(url + CHAT, json=chat(text))

    assert answer.headers["x-ragboost-frame"] == "tags"
    assert "hidden" not in httpx.get(f"{url}/metrics").text
    assert "hidden" not in httpx.get(f"{url}/dashboard/data").text
