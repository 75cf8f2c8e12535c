"""OpenAI's chat completions, as vLLM, SGLang and most providers speak them."""

from typing import Any

from ragboost.wires.wire import UsageFields, WireApi

_MAX_DEPTH = 32  # of a message's content and calls

OPENAI_CHAT = WireApi(
    endpoint="chat",
    path="/v1/chat/completions",
    summary="Boost and forward a chat completion",
    has_stream_options=True,
    messages=("messages",),
    rewritten=("messages",),
    tools=("tools", "functions"),
    head_options=("reasoning_effort", "chat_template", "chat_template_kwargs"),
    instruction_roles=("system", "developer"),
    tool_roles=("tool", "function"),
    text_types=("text",),
    image_types=("image_url",),
    ordered=("tool_calls",),
    counts=(
        UsageFields(
            prompt=("prompt_tokens",),
            cached=(
                "prompt_tokens_details.cached_tokens",
                "cached_tokens",  # Moonshot, SGLang
                "prompt_cache_hit_tokens",  # DeepSeek
            ),
            written=(
                "prompt_tokens_details.created_cache_tokens",  # vLLM
                "prompt_tokens_details.cache_write_tokens",
                "prompt_tokens_details.cache_creation_tokens",
            ),
            reused=("ragboost.reused",),
            recomputed=("ragboost.recomputed",),
        ),
    ),
)

AnswerMessage = dict[str, Any]
"""An assistant message as a client sends it back: `role`, `content`, `tool_calls`."""


def read_answers(answer: Any) -> list[AnswerMessage]:
    """Return the assistant's message of each choice; none if one is nested too deeply."""
    choices = _objects(answer.get("choices"))
    found = _objects([choice.get("message") for choice in choices])
    messages = [_message(each.get("content"), each.get("tool_calls")) for each in found]
    return messages if _is_shallow(messages, _MAX_DEPTH) else []  # nobody could hash or store them


class AnswerDeltas:
    """The assistant's messages of a stream, put together from its events."""

    def __init__(self) -> None:
        self._by_choice: dict[int, _Deltas] = {}

    def add(self, event: Any) -> bool:
        """Add an event; return False if it is an error, or no completion."""
        if not isinstance(event, dict) or "error" in event:
            return False
        for choice in _objects(event.get("choices")):
            if isinstance(delta := choice.get("delta"), dict):
                index = choice.get("index")
                index = index if isinstance(index, int) else 0
                if index not in self._by_choice:
                    self._by_choice[index] = _Deltas()
                self._by_choice[index].add(delta)
        return True

    def join(self) -> list[AnswerMessage]:
        return [deltas.join() for _, deltas in sorted(self._by_choice.items())]


class _Deltas:
    def __init__(self) -> None:
        self._content: list[str] = []
        self._calls: dict[int, dict[str, list[str]]] = {}  # by index, the pieces of each field

    def add(self, delta: dict[str, Any]) -> None:
        if isinstance(content := delta.get("content"), str):
            self._content.append(content)
        for call in _objects(delta.get("tool_calls")) if "tool_calls" in delta else ():
            index = call.get("index")
            index = index if isinstance(index, int) else len(self._calls)
            pieces = self._calls.setdefault(index, {"id": [""], "name": [], "arguments": []})
            if isinstance(name := call.get("id"), str) and name:
                pieces["id"] = [name]
            for function in _objects([call.get("function")]):
                for name in ("name", "arguments"):
                    if isinstance(piece := function.get(name), str):
                        pieces[name].append(piece)

    def join(self) -> AnswerMessage:
        calls = [
            {
                "id": pieces["id"][0],
                "type": "function",
                "function": {
                    name: "".join(pieces[name]) for name in ("name", "arguments") if pieces[name]
                },
            }
            for _, pieces in sorted(self._calls.items())
        ]
        return _message("".join(self._content) if self._content else None, calls)


def _message(content: Any, calls: Any) -> AnswerMessage:
    if calls:
        return {"role": "assistant", "content": content, "tool_calls": calls}
    return {"role": "assistant", "content": "" if content is None else content}


def _objects(items: Any) -> list[dict[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _is_shallow(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return True
    return levels > 0 and all(_is_shallow(item, levels - 1) for item in value)
