"""A body shape that the code has never heard of needs its file and a line in the registry."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
# Like Gemini's: other names for the list of messages, a message's parts, instructions and usage.
CODE = """
import json
from ragboost.requests.wires import openai_responses
from ragboost.requests.wires.wire import UsageFields, WireApi

openai_responses.OPENAI_RESPONSES = WireApi(
    endpoint="generate", path="/v1/generate", summary="Boost and forward a generated content",
    messages=("contents",), content=("parts",), rewritten=("contents",),
    instructions=("systemInstruction",), usage=("usageMetadata",),
    counts=(UsageFields(prompt=("promptTokenCount",), cached=("cachedContentTokenCount",)),),
)

from ragboost.booster import Booster
from ragboost.config import Settings
from ragboost.proxy.hosted.prompt import PromptParts
from ragboost.requests.json_body import JsonBody
from ragboost.proxy.app import create_app
from ragboost.requests.formats import make_formats
from ragboost.requests.history import History
from ragboost.requests.parsed_request import parse_request
from ragboost.requests.rewriter import Rewriting
from ragboost.requests.wires.usage import has_usage, read_usage

settings = Settings()
formats = make_formats(settings)
history_of_all = History.of(settings)
booster = Booster(settings)
documents = [{"id": i, "text": f"Document {i} tells of {i}. " * 20} for i in range(3)]


def send(contents, **fields):
    body = {"systemInstruction": "Be brief.", "contents": contents, **fields}
    request = parse_request(json.dumps(body).encode(), [], formats=formats)
    conversation = history_of_all.known(request.chain) if request.is_followed else None
    leading = request.leading(conversation)
    result = Rewriting(request, conversation, label_template="[Doc_{label}]").boost(booster)
    history_of_all.add(result.delta)
    return json.loads(request.body.encode(result.fields)), leading


def user(text):
    return {"role": "user", "parts": [{"text": text}]}


first, leading = send([user("one?")], ragboost={"documents": documents[:2], "session_id": "s"})
assert "ragboost" not in first
assert leading.prompt_prefix
(part,) = first["contents"][0]["parts"]
assert part["text"].endswith("one?") and documents[0]["text"].strip() in part["text"]

history = [user("one?"), {"role": "model", "parts": [{"text": "So."}]}, user("two?")]
second, _ = send(history, ragboost={"documents": documents, "session_id": "s"})
assert second["contents"][:1] == first["contents"]
assert documents[2]["text"].strip() in second["contents"][2]["parts"][0]["text"]
assert documents[0]["text"].strip() not in second["contents"][2]["parts"][0]["text"]

tagged = "".join(f"<document>{d['text']}</document>" for d in documents) + "why?"
inside, leading = send([user(tagged)])
assert [d.text for d in leading.documents] and inside["contents"][0]["parts"][0]["text"]

event = {"usageMetadata": {"promptTokenCount": 9, "cachedContentTokenCount": 4}}
assert has_usage(json.dumps(event).encode())
assert read_usage(event)[:2] == (9, 4)
body = JsonBody(json.dumps(first).encode())
turns = body.elements("contents")
prompt = PromptParts.of(body.raw_fields, "contents", turns, num_above=0)
assert [part.is_message for part in prompt.parts] == [False, True]
assert "/v1/generate" in create_app(settings).direct
"""


def test_a_new_api_is_a_file_and_a_line_in_the_registry() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
