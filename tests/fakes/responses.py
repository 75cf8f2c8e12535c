"""Bodies of FakeEngine: render prompts from requests, and responses and streams from words.

Chat and text completions, Anthropic messages and OpenAI Responses. Knows JSON. Does not know HTTP.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

MODEL = "fake-model"
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
_WORDS = ("alpha", "beta", "gamma", "delta", "omega", "sigma", "kappa", "zeta")

Fields = Mapping[str, Any]


def decode(body: bytes) -> dict[str, Any]:
    """Return the fields of a request body, or none if it is not a JSON object."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def words(prompt_tokens: Sequence[int], count: int) -> list[str]:
    """Return `count` output words that depend on the prompt only."""
    seed = sum(prompt_tokens)
    return [_WORDS[(seed + i * i) % len(_WORDS)] for i in range(count)]


def render_prompt(fields: Fields) -> str:
    """Render a chat template: documents first, then instructions and messages with their roles."""
    if isinstance(fields.get("input"), str):
        fields = {**fields, "messages": [{"role": "user", "content": fields["input"]}]}
    messages = fields.get("messages", fields.get("input"))
    if messages is None:
        prompt = fields.get("prompt", "")
        return prompt if isinstance(prompt, str) else json.dumps(prompt)
    parts = []
    documents = fields.get("documents")
    for position, document in enumerate(documents if isinstance(documents, list) else []):
        parts.append(f"<|document {position}|>\n{_document_text(document)}\n")
    parts.extend(
        f"<|{name}|>\n{_content_text(fields[name])}<|end|>\n"
        for name in ("system", "instructions")
        if fields.get(name)
    )
    parts.extend(
        f"<|{message.get('role', message.get('type'))}|>\n{_content_text(message.get('content'))}"
        "<|end|>\n"
        for message in (messages if isinstance(messages, list) else [])
    )
    return "".join([*parts, "<|assistant|>\n"])


def _document_text(document: Any) -> str:
    if not isinstance(document, dict):
        return str(document)
    return "\n".join(f"{key}: {value}" for key, value in document.items())


def _content_text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", f"<{part.get('type')}>") for part in content)
    return "" if content is None else str(content)


def whole(
    path: str, fields: Fields, output: Sequence[str], usage: tuple[int, int]
) -> dict[str, Any]:
    """Return a response as one object.

    Args:
        path: path of the request.
        fields: fields of the request's body.
        output: output words.
        usage: prompt tokens and cached tokens.
    """
    if path == "/v1/messages":
        return _message(fields, output, usage)
    if path == "/v1/responses":
        return _response(fields, output, usage)
    return _completion(fields, output, usage)


def events(path: str, fields: Fields, output: Sequence[str], usage: tuple[int, int]) -> list[bytes]:
    """Return the same response as server-sent events."""
    if path == "/v1/messages":
        return _message_events(fields, output, usage)
    if path == "/v1/responses":
        return _response_events(fields, output, usage)
    return _completion_events(fields, output, usage)


def _usage(output: Sequence[str], usage: tuple[int, int]) -> dict[str, Any]:
    return {
        "prompt_tokens": usage[0],
        "completion_tokens": len(output),
        "total_tokens": usage[0] + len(output),
        "prompt_tokens_details": {"cached_tokens": usage[1]},
    }


def _called(fields: Fields) -> str | None:
    """Return the name of the first tool if the request requires a tool call, else None."""
    choice = fields.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind not in ("required", "any", "function", "tool") or not fields.get("tools"):
        return None
    tool = fields["tools"][0]
    return str(tool.get("function", tool)["name"])


def _completion(fields: Fields, output: Sequence[str], usage: tuple[int, int]) -> dict[str, Any]:
    text, called = " ".join(output), _called(fields)
    is_chat = "messages" in fields
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    if not is_chat:
        choice["text"] = text
    elif called:
        function = {"name": called, "arguments": json.dumps({"query": text})}
        call = {"id": "call_fake", "type": "function", "function": function}
        choice["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice["finish_reason"] = "tool_calls"
    else:
        choice["message"] = {"role": "assistant", "content": text}
    return {
        "id": "cmpl-fake",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": 0,
        "model": fields.get("model", MODEL),
        "choices": [choice],
        "usage": _usage(output, usage),
    }


def _completion_events(
    fields: Fields, output: Sequence[str], usage: tuple[int, int]
) -> list[bytes]:
    is_chat = "messages" in fields
    base = {
        "id": "cmpl-fake",
        "object": "chat.completion.chunk" if is_chat else "text_completion",
        "created": 0,
        "model": fields.get("model", MODEL),
    }
    wants_usage = bool((fields.get("stream_options") or {}).get("include_usage"))
    made = [b": a comment, as some servers send\n\n"]
    for position, word in enumerate(output):
        text = word if position == 0 else " " + word
        choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        choice.update({"delta": {"content": text}} if is_chat else {"text": text})
        made.append(_event({**base, "choices": [choice]}))
    last: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    last["delta" if is_chat else "text"] = {} if is_chat else ""
    made.append(_event({**base, "choices": [last]}))
    if wants_usage:
        made.append(_event({**base, "choices": [], "usage": _usage(output, usage)}))
    return [*made, b"data: [DONE]\n\n"]


def _message(fields: Fields, output: Sequence[str], usage: tuple[int, int]) -> dict[str, Any]:
    """Return an Anthropic message; its `input_tokens` exclude the cached ones."""
    text, called = " ".join(output), _called(fields)
    content: dict[str, Any] = {"type": "text", "text": text}
    if called:
        content = {"type": "tool_use", "id": "toolu_fake", "name": called, "input": {"query": text}}
    return {
        "id": "msg_fake",
        "type": "message",
        "role": "assistant",
        "model": fields.get("model", MODEL),
        "content": [content],
        "stop_reason": "tool_use" if called else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage[0] - usage[1],
            "cache_read_input_tokens": usage[1],
            "cache_creation_input_tokens": 0,
            "output_tokens": len(output),
        },
    }


def _message_events(fields: Fields, output: Sequence[str], usage: tuple[int, int]) -> list[bytes]:
    message = _message(fields, output, usage)
    start = {**message, "content": [], "stop_reason": None}
    block: dict[str, Any] = {"type": "text", "text": ""}
    made: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "ping"},
    ]
    for position, word in enumerate(output):
        delta = {"type": "text_delta", "text": word if position == 0 else " " + word}
        made.append({"type": "content_block_delta", "index": 0, "delta": delta})
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    made += [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": {"output_tokens": len(output)}},
        {"type": "message_stop"},
    ]
    return [_named_event(event) for event in made]


def _response(fields: Fields, output: Sequence[str], usage: tuple[int, int]) -> dict[str, Any]:
    part = {"type": "output_text", "text": " ".join(output), "annotations": []}
    message = {"type": "message", "id": "msg_fake", "status": "completed", "role": "assistant"}
    return {
        "id": "resp_fake",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": fields.get("model", MODEL),
        "output": [{**message, "content": [part]}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage[0],
            "input_tokens_details": {"cached_tokens": usage[1]},
            "output_tokens": len(output),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage[0] + len(output),
        },
    }


def _response_events(fields: Fields, output: Sequence[str], usage: tuple[int, int]) -> list[bytes]:
    done = _response(fields, output, usage)
    begun = {**done, "status": "in_progress", "output": [], "usage": None}
    item = done["output"][0]
    where = {"item_id": item["id"], "output_index": 0}
    part = {**item["content"][0], "text": ""}
    empty = {**item, "status": "in_progress", "content": []}
    made: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": empty},
        {"type": "response.content_part.added", **where, "content_index": 0, "part": part},
    ]
    for position, word in enumerate(output):
        text = word if position == 0 else " " + word
        delta = {"type": "response.output_text.delta", **where, "content_index": 0}
        made.append({**delta, "delta": text, "logprobs": []})
    made += [
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": done},
    ]
    return [_named_event({**event, "sequence_number": i}) for i, event in enumerate(made)]


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def _named_event(data: dict[str, Any]) -> bytes:
    return f"event: {data['type']}\n".encode() + _event(data)
