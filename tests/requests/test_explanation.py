"""What is explained of a request is what a proxy would send, and explaining it changes nothing."""

import json
from typing import Any

import pytest

from ragboost.config import Settings
from ragboost.requests.explanation import Explainer, Explanation
from ragboost.requests.parsed_request import parse_request

TEXTS = [f"Document {name} tells of the {name} and of nothing else. " * 4 for name in "abc"]
TAGS = "".join(f"<passage>\n{text}\n</passage>\n" for text in TEXTS) + "\nWhy?"


def explain(body: Any, **sections: Any) -> Explanation:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Explainer(Settings(**sections)).explain(raw)


def user(text: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


BODIES: dict[str, dict[str, Any]] = {
    "chat": user(TAGS),
    "Anthropic": {"system": TAGS, "messages": [{"role": "user", "content": "Why?"}]},
    "content parts": user([{"type": "text", "text": TAGS}]),
    "Responses": {"input": TAGS},
    "completions": {"prompt": TAGS},
    "ragboost object": user("Why?", ragboost={"documents": TEXTS}),
    "documents field": user("Why?", documents=[{"text": text} for text in TEXTS]),
}


@pytest.mark.parametrize("name", BODIES)
def test_documents_are_seen_on_every_wire(name: str) -> None:
    found = explain(BODIES[name])

    assert (found.detection, len(found.documents), found.why, found.advice) == ("found", 3, "", "")
    assert list(found.order) == [3, 2, 1]
    assert all(document.tokens >= 40 for document in found.documents)
    sent = found.sent.decode()
    places = [sent.index(f"Document {name} tells") for name in "cba"]
    assert places == sorted(places)
    assert json.dumps(found.note)[1:-1] in sent
    assert found.tokens_before < found.tokens_after < found.tokens_before + 50


def test_settings_hold() -> None:
    off = explain(BODIES["chat"], ordering={"enabled": False})
    assert (list(off.order), off.note, off.tokens_before) == ([1, 2, 3], "", off.tokens_after)
    assert json.loads(off.sent) == BODIES["chat"]
    hidden = explain(BODIES["chat"], formats={"in_text": False})
    assert (hidden.detection, hidden.why) == (
        "no_documents",
        "formats.in_text is off: texts are not searched",
    )


def test_the_same_documents_later_are_references() -> None:
    long = TAGS.replace("nothing else. ", "nothing else. " * 20)
    messages = [
        {"role": "user", "content": long},
        {"role": "assistant", "content": "Because."},
        {"role": "user", "content": long},
    ]
    found = explain({"messages": messages})
    assert found.tokens_after < 0.8 * found.tokens_before


@pytest.mark.parametrize(
    ("body", "detection", "why"),
    [
        (b"", "malformed_body", "line 1 column 1"),
        (b"\x00\xff\xfe binary", "malformed_body", ""),
        (b"[1]", "malformed_body", "array, not an object"),
        (b'{"messages": ' + b"[" * 5000, "malformed_body", ""),
        (b"{}", "no_documents", "may hold documents"),
        ({"messages": 3}, "no_documents", "may hold documents"),
        (user("Hello."), "no_documents", "no list of two or more documents"),
        (user("Why?", ragboost={"documents": 3}), "refused", "must be a list, got 3"),
        (user("Why?", ragboost={"secret": 3}), "refused", "ragboost.secret is unknown"),
        (user("Why?", documents=3), "unknown_shape", "documents must be a list"),
        (user("Why?", documents=[{"text": "a"}] * 10_001), "too_many_documents", "10001"),
    ],
)
def test_why_nothing_is_found_is_said_with_what_helps(body: Any, detection: str, why: str) -> None:
    found = explain(body)
    assert found.detection == detection
    assert why in found.why
    assert found.advice
    assert list(found.documents) == list(found.order) == []


def test_a_numbered_list_that_stays_is_said_with_what_helps() -> None:
    tags = "".join(f'<source id="{at}">{text}</source>' for at, text in enumerate(TEXTS, 1))
    found = explain(user(f"<context>{tags}</context>\nCompare [1] and [2]."))
    assert (found.detection, list(found.order)) == ("numbered_documents", [1, 2, 3])
    assert "by number" in found.why
    assert "numbers" in found.advice


def test_a_client_that_wants_no_boosting_is_told_so() -> None:
    body = user("Why?", ragboost={"documents": TEXTS, "options": {"boost": False}})
    found = explain(body)
    assert (found.detection, found.why) == ("found", "options.boost is false")


def test_the_answer_is_ascii_without_control_characters_whatever_the_text_has() -> None:
    odd = "\x1b]0;title\x07 \x9b31m \u202e \x7f \U0001f600 "
    body = user(TAGS.replace("Document", odd + "Document"), n=10**30, x=[1.10, -0.0])
    found = explain(json.dumps(body, ensure_ascii=False).encode())

    text = found.as_json()

    assert len(found.documents) == 3
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text)["sent"] == json.loads(found.sent)
    assert "1000000000000000000000000000000" in text
    assert all(document.begins.isprintable() for document in found.documents)


def test_lone_surrogates_are_shown() -> None:
    found = explain(json.dumps(user(TAGS.replace("Document", "\ud800Document"))).encode())
    assert len(found.documents) == 3
    assert json.loads(found.as_json())["documents"][0]["begins"].isprintable()


def test_explaining_leaves_no_trace() -> None:
    explainer, raw = Explainer(Settings()), json.dumps(BODIES["chat"]).encode()
    first = explainer.explain(raw)
    other = json.dumps(user(TAGS.replace("Why?", "How?"))).encode()
    explainer.explain(other)
    assert explainer.explain(raw) == first


def test_explaining_says_what_parsing_says() -> None:
    explainer = Explainer(Settings())
    for body in BODIES.values():
        raw = json.dumps(body).encode()
        request = parse_request(raw, (), formats=explainer._formats)
        assert explainer.explain(raw).detection == request.detection.name
