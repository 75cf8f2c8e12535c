"""Compare what a chat template makes of two conversations, where it is at hand."""

from collections.abc import Sequence
from typing import Any

from ragboost.booster.tokens.chat_template import ChatTemplate
from ragboost.proxy.hosted.lint.comparison import PrefixBreak
from ragboost.proxy.hosted.lint.prompt import PromptParts, common_length
from ragboost.requests.wires.normal_form import normal_message

_MAX_BYTES = 256 * 1024  # of both


def rendered_break(
    found: PrefixBreak, before: PromptParts, after: PromptParts, template: ChatTemplate
) -> PrefixBreak | None:
    """Return a difference as the engine sees it: None if one text continues the other, else what is
    equal and lost in these. The difference itself where nothing can be rendered."""
    if before.num_bytes + after.num_bytes > _MAX_BYTES or before.model != after.model:
        return found
    old, new = (_render(prompt, template) for prompt in (before, after))
    if old is None or new is None:
        return found
    common = common_length(old, new)
    if common == min(len(old), len(new)):
        return None
    equal_bytes, num_bytes = (len(t.encode(errors="replace")) for t in (old[:common], old))
    return found._replace(equal_bytes=equal_bytes, lost_bytes=num_bytes - equal_bytes)


def _render(prompt: PromptParts, template: ChatTemplate) -> str | None:
    messages, tools = [], []
    for part in prompt.parts:
        if part.place == "tools":
            tools.append(part.source)
        elif not part.path.startswith("messages["):
            return None  # not a chat
        elif (message := _message(part.source)) is None:
            return None
        else:
            messages.append(message)
    return template.render(messages, tools=tools)


def _message(source: Any) -> dict[str, Any] | None:
    """Return a message as engines give it to a template; None for one with more than texts."""
    if not isinstance(source, dict) or not isinstance(source.get("role"), str):
        return None
    message = {"content": "", **normal_message(source, "vllm")}
    if isinstance(message["content"], list) and (text := _text(message["content"])) is not None:
        message["content"] = text
    if not isinstance(message["content"], str):
        return None
    if "reasoning" in message:
        message["reasoning_content"] = message["reasoning"]
    return message


def _text(blocks: Sequence[Any]) -> str | None:
    texts = [b.get("text") if isinstance(b, dict) else None for b in blocks]
    return "\n".join(map(str, texts)) if all(isinstance(text, str) for text in texts) else None
