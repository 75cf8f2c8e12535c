"""Write the parts of a prompt as the server reads them that renders it.

Clients spell one message in many ways: nulls, empty lists, white space, one text block for a text.
Engines parse, join and drop more than that before a chat template sees it. Two parts with the same
normal form give the same tokens. Does not know templates, and guesses nothing: what a server may
render stays.

vLLM: `entrypoints/chat_utils.py` (`_parse_chat_message_content`, `_postprocess_messages`) and
`entrypoints/anthropic/serving.py`. SGLang: `entrypoints/openai/serving_chat.py` and
`entrypoints/anthropic/serving.py`.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

from ragboost.requests.wires.cache_marks import CACHE_MARKS, without_marks
from ragboost.requests.wires.registry import ANY
from ragboost.requests.wires.volatile_lines import BILLING_LINE

EngineKind = Literal["vllm", "sglang", "hosted", ""]
"""The server that renders prompts; empty if it is unknown, or for backends of several kinds."""

_ENGINES = ("vllm", "sglang")
# The order in which fields are written; others follow by name.
_ORDER = ("type", "role", "name", "content", "text")
# All that these engines hand to the chat template; they drop annotations, refusals, indices.
_MESSAGE = {"role", "name", "content", "tool_calls", "tool_call_id", "tools", "task", "phase"}
_MESSAGE |= {"reasoning", "prefix"}
_GIVEN = ("arguments", "input")
_BLOCKS = {
    "text": {"type", "text"},
    "thinking": {"type", "thinking"},
    "tool_use": {"type", "id", "name", "input"},
    "tool_result": {"type", "tool_use_id", "content"},
    "function": {"type", "id", "function"},
}


def is_empty(value: Any) -> bool:
    """Return True for null, an empty text and an empty list, which render as an absent field."""
    return value is None or (isinstance(value, str | list) and not value)


def is_messages_api(fields: Mapping[str, Any]) -> bool:
    """Return True for a body of Anthropic's API, by what no other one has."""
    tools = fields.get("tools")
    has_schema = isinstance(tools, list) and any(
        isinstance(tool, dict) and "input_schema" in tool for tool in tools
    )
    return "system" in fields or has_schema


def normal_instructions(value: Any, kind: EngineKind) -> Any:
    """Return the normal form of a field above the messages, such as `system`."""
    blocks = value if isinstance(value, list) else ()
    texts = [b.get("text") if isinstance(b, dict) else None for b in blocks]
    if kind not in _ENGINES or not texts or not all(isinstance(text, str) for text in texts):
        return joined(_normal(value, kind))
    if kind == "vllm":  # which leaves out Claude Code's billing line, and joins without a separator
        return "".join([str(text) for text in texts if not str(text).startswith(BILLING_LINE)])
    return "\n".join([str(text) for text in texts if text])


def normal_message(message: Any, kind: EngineKind) -> Any:
    """Return the normal form of a message."""
    if type(message) is dict and len(message) == 2 and "role" in message:
        content = message.get("content")
        if content and type(content) is str:  # most messages
            return {"role": message["role"], "content": content}
    if not isinstance(message, dict) or kind not in _ENGINES or "type" in message:
        return _normal(message, kind)
    if not message.get("reasoning") and "reasoning_content" in message:
        message = {**message, "reasoning": message["reasoning_content"]}
    value = _normal({name: message[name] for name in message if name in _MESSAGE}, kind)
    if kind == "vllm" and message.get("role") in ANY.tool_roles and "content" in value:
        value["content"] = _text_lines(value["content"])
    return value


def normal_tool(tool: Any, kind: EngineKind) -> Any:
    """Return the normal form of a tool; within its schema, the order of keys is rendered."""
    tool = without_marks(tool)
    if kind not in _ENGINES or not isinstance(tool, dict):
        return tool
    # Engines read a tool into a model of their own, which has one order.
    inner = tool.get("function")
    if isinstance(inner, dict):
        tool = {**tool, "function": _ordered({n: v for n, v in inner.items() if v is not None})}
    return _ordered({name: value for name, value in tool.items() if value is not None})


def _normal(value: Any, kind: EngineKind) -> Any:
    if isinstance(value, list):
        values = [_normal(part, kind) for part in value]
        return [v for v in values if v != {"type": "text"}] if kind in _ENGINES else values
    if not isinstance(value, dict):
        return value
    block = value.get("type")
    read = _BLOCKS.get(block) if kind in _ENGINES and isinstance(block, str) else None
    fields = {
        name: _given(name, inner, kind) if name in _GIVEN else _normal(inner, kind)
        for name, inner in value.items()
        if name not in CACHE_MARKS and not is_empty(inner) and (read is None or name in read)
    }
    if block == "message":  # the default of the Responses API
        del fields["type"]
    for name in ANY.content:
        if name in fields:
            fields[name] = joined(fields[name])
    if kind == "vllm" and block == "tool_result" and "content" in fields:
        fields["content"] = _text_lines(fields["content"])
    if "function" in fields and isinstance(fields["function"], dict) and kind != "hosted":
        fields["function"].setdefault("arguments", {})
    return _ordered({name: inner for name, inner in fields.items() if not is_empty(inner)})


def _given(name: str, value: Any, kind: EngineKind) -> Any:
    """Return what a tool is called with as a template gets it, keys in the given order.

    Engines parse `arguments`; a hosted API may show its model the text itself.
    """
    if kind == "hosted" or name != "arguments" or not isinstance(value, str):
        return value
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return {} if kind == "vllm" or not value.strip() else value
    return parsed if isinstance(parsed, dict | list) else value


def _ordered(fields: dict[str, Any]) -> dict[str, Any]:
    first = {name: fields[name] for name in _ORDER if name in fields}
    return first | {name: fields[name] for name in sorted(fields) if name not in first}


def joined(content: Any) -> Any:
    """Write a content of one text block as a text, which is the same."""
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        block = content[0]
        if set(block) == {"type", "text"} and isinstance(block["text"], str):
            return block["text"]
    return content


def _text_lines(content: Any) -> Any:
    """Write text blocks as lines, as vLLM gives the result of a tool to a template."""
    blocks = content if isinstance(content, list) else ()
    if not blocks or any(not isinstance(b, dict) or set(b) != {"type", "text"} for b in blocks):
        return content
    return "\n".join([str(block["text"]) for block in blocks])
