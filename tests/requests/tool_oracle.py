"""Tool results in three wire formats, and their restoration from what a backend received.

Shares no code with the proxy.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Message = dict[str, Any]
_WHOLE = re.compile(r"\[Same as tool result (\d+) above\.\]")
_PART = re.compile(
    r'\n\[Same text as in tool result (\d+) above, from "(.*?)" to "(.*?)", (\d+) characters\.\]\n'
)


class Step(NamedTuple):
    """A tool call of an agent, and the tool's result."""

    tool: str
    arguments: Mapping[str, str]
    result: str


class Wire(NamedTuple):
    """A wire format: its path, the name of its list of messages, and a session's messages."""

    path: str
    name: str

    def messages(self, number: int, step: Step) -> list[Message]:
        """Return the messages of one step: the model's call, and the tool's result."""
        name, arguments, call = step.tool, json.dumps(step.arguments), f"call_{number}"
        if self.path == "/v1/responses":
            return [
                {"type": "function_call", "call_id": call, "name": name, "arguments": arguments},
                {"type": "function_call_output", "call_id": call, "output": step.result},
            ]
        if self.path == "/v1/messages":
            use = {"type": "tool_use", "id": call, "name": name, "input": dict(step.arguments)}
            text = {"type": "text", "text": step.result}
            result = {"type": "tool_result", "tool_use_id": call, "content": [text]}
            return [
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result]},
            ]
        function = {"name": name, "arguments": arguments}
        calls = [{"id": call, "type": "function", "function": function}]
        return [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": call, "content": step.result},
        ]

    def result(self, message: Message) -> str:
        """Return the tool result of a step's second message."""
        content = message["output"] if self.path == "/v1/responses" else message["content"]
        if self.path == "/v1/messages":
            content = content[0]["content"][0]["text"]
        return str(content)


WIRES = {
    "chat": Wire("/v1/chat/completions", "messages"),
    "anthropic": Wire("/v1/messages", "messages"),
    "responses": Wire("/v1/responses", "input"),
}


def restore(results: Sequence[str]) -> list[str]:
    """Restore tool results from what was sent; a reference that is not clear stays as it is."""
    return [_PART.sub(lambda found: _passage(found, results), _whole(r, results)) for r in results]


def _whole(result: str, results: Sequence[str]) -> str:
    found = _WHOLE.fullmatch(result)
    return results[int(found[1]) - 1] if found else result


def _passage(found: re.Match[str], results: Sequence[str]) -> str:
    """Return the one passage with the reference's first and last words and length."""
    source, size = results[int(found[1]) - 1], int(found[4])
    passages = [
        passage
        for start in range(len(source) - size + 1)
        if not source[start].isspace()
        and " ".join((passage := source[start : start + size])[:60].split()) == found[2]
        and " ".join(passage[-60:].split()) == found[3]
    ]
    return passages[0] if len(passages) == 1 else found[0]
