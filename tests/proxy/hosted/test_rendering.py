"""Where the chat template is at hand, what it renders decides if a prompt is continued."""

import json
from pathlib import Path
from typing import Any

import pytest

from ragboost.booster.tokens.chat_template import ChatTemplate
from ragboost.proxy.hosted.causes import Cause
from ragboost.proxy.hosted.conversations import PrefixWatch
from tests.proxy.hosted.test_lint import request
from tests.proxy.hosted.test_live import find

pytest.importorskip("jinja2")

# Drops the reasoning of earlier turns, and writes what calls are given with sorted keys.
TEMPLATE = """
{%- for message in messages %}
<|{{ message.role }}|>{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{ call.function.name }}({{ call.function.arguments.items() | sort | list }})
{%- endfor %}{{ eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}
"""


def directory(path: Path, source: str = TEMPLATE, *, is_file: bool = False) -> Path:
    config: dict[str, Any] = {"eos_token": {"content": "<|end|>"}}
    if is_file:
        (path / "chat_template.jinja").write_text(source)
    else:
        config["chat_template"] = [{"name": "default", "template": source}]
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text("{}")
    return path


def two(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    bodies = [request(turns=2), request(turns=3)]
    for body, message in zip(bodies, (before, after), strict=True):
        del body["tools"]
        body["messages"][2] = {"role": "assistant", **message}
    return bodies


def called(arguments: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"content": None, "tool_calls": [{"id": "t", "type": "function", "function": function}]}


CALLS = called('{"a": 1, "b": 2}'), called('{"b": 2, "a": 1}')
REASONS = {"content": "So.", "reasoning_content": "It follows."}, {"content": "So."}


@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize("messages", [CALLS, REASONS])
def test_what_the_template_renders_alike_is_no_break(
    tmp_path: Path, messages: Any, is_file: bool
) -> None:
    path = directory(tmp_path, is_file=is_file)
    for place in (path, path / "tokenizer.json"):
        template = ChatTemplate.beside(place)
        assert template is not None
        watches = PrefixWatch(), PrefixWatch(template=template)
        for body in two(*messages):
            found = [find(watch, body) for watch in watches]
        assert found[0] is not None
        assert found[1] is None


def test_a_difference_that_is_rendered_has_its_place_in_the_text(tmp_path: Path) -> None:
    template = ChatTemplate.beside(directory(tmp_path))
    assert template is not None
    watch = PrefixWatch(template=template)
    bodies = two({"content": "One."}, {"content": "Two."})
    assert find(watch, bodies[0]) is None
    found = find(watch, bodies[1])
    assert found is not None
    assert (found.cause, found.path) == (Cause.MESSAGE, "messages[2]")
    above = template.render(bodies[0]["messages"][:2])
    assert above is not None
    assert found.equal_bytes == len(f"{above}<|assistant|>")


@pytest.mark.parametrize(
    "source", ["{% generation %}", "{{ messages[0].no.such }}", "{{ raise_exception('no') }}"]
)
def test_a_template_that_cannot_be_used_or_refuses_changes_nothing(
    tmp_path: Path, source: str
) -> None:
    watch = PrefixWatch(template=ChatTemplate.beside(directory(tmp_path, source)))
    bodies = two({"content": "One."}, {"content": "Two."})
    assert find(watch, bodies[0]) is None
    assert find(watch, bodies[1]) is not None


def test_without_a_local_template_there_is_none(tmp_path: Path) -> None:
    assert ChatTemplate.beside(None) is None
    assert ChatTemplate.beside(tmp_path / "no") is None
    assert ChatTemplate.beside(tmp_path) is None
