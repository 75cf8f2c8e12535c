"""Find the first difference between two requests of a conversation, what it costs, and what is said
of it to whoever sent it.

Looks at the first one only: an API's cache ends there. Where a chat template is at hand, compares
what it makes of both. What is said holds no text: a place, lengths, a cause. Users may share their
credentials: who does not show that he knows the earlier conversation is told the cause alone.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from ragboost.booster.tokens.chat_template import ChatTemplate
from ragboost.proxy.hosted.causes import MENDS, Cause, cause_of, value_cause
from ragboost.proxy.hosted.conversations import PromptPair
from ragboost.proxy.hosted.prompt import PromptPart, PromptParts, common_length, text_bytes
from ragboost.requests.wires.normal_form import EngineKind, normal_message
from ragboost.requests.wires.registry import ANY

_SHOWN = 60
_AROUND = 4096  # bytes around the difference of two long parts that are read
_MAX_BYTES = 256 * 1024  # of parts that differ, decoded in one comparison


class PrefixBreak(NamedTuple):
    """The first difference between two requests of a conversation."""

    cause: Cause
    path: str  # of the part in which it is, in the later request
    place: str  # the same without numbers
    offset: int  # bytes of that part before the difference
    equal_bytes: int  # of the whole prompt before it
    lost_bytes: int  # of the earlier prompt behind it, which would have been cached
    before: str  # the earlier text from shortly before the difference
    after: str  # the later text from there
    # An answer of the earlier conversation is in the later request; else its sender may be guessing
    # what somebody else has sent.
    is_proven: bool = True


def compare(before: PromptParts, after: PromptParts) -> PrefixBreak | None:
    """Return the first difference; None if the later prompt continues the earlier one, or is a
    beginning of it, or if so much is spelled in two ways that this is not looked into."""
    if before.model != after.model:
        lost = min(before.num_bytes, after.num_bytes)
        return PrefixBreak(Cause.MODEL, "model", "model", 0, 0, lost, before.model, after.model)
    if (name := _changed(before, after, ANY.head_options)) is not None:
        return _option_break(before, after, name, equal_bytes=0)
    equal_bytes = decoded_bytes = 0
    for at, old in enumerate(before.parts):
        name = _changed(before, after, ANY.message_options) if at == before.num_above else None
        if name is not None:
            return _option_break(before, after, name, equal_bytes=equal_bytes)
        if at >= len(after.parts):
            return None  # all of it was sent
        new = after.parts[at]
        if old.path != new.path or old.raw != new.raw:
            if old.path == new.path and old.size + new.size > _MAX_BYTES:
                return _long_difference(before, after, at, equal_bytes)
            if old.path != new.path or old.text != new.text:
                return _difference(before, after, at, new, equal_bytes)
            decoded_bytes += old.size
            if decoded_bytes > _MAX_BYTES:
                return None
        equal_bytes += old.size
    return None


def _changed(before: PromptParts, after: PromptParts, names: Sequence[str]) -> str | None:
    old, new = before.options, after.options
    return next((name for name in names if old.get(name) != new.get(name)), None)


def _option_break(
    before: PromptParts, after: PromptParts, name: str, *, equal_bytes: int
) -> PrefixBreak:
    lost = min(before.num_bytes, after.num_bytes) - equal_bytes
    old, new = (json.dumps(parts.options.get(name))[:_SHOWN] for parts in (before, after))
    return PrefixBreak(Cause.OPTIONS, name, "options", 0, equal_bytes, max(0, lost), old, new)


def _difference(
    before: PromptParts, after: PromptParts, at: int, new: PromptPart, equal_bytes: int
) -> PrefixBreak | None:
    old = before.parts[at]
    common = common_length(old.text, new.text)
    offset = len(old.text[:common].encode("utf-8", "surrogatepass"))
    if at == len(before.parts) - 1 and common == len(old.text) and old.place == "prompt":
        return None  # a prompt that grows
    lost = min(before.num_bytes, after.num_bytes) - equal_bytes - offset
    cause = cause_of(before, after, at, common)
    shown = _shown(old.text, new.text, common)
    return PrefixBreak(cause, new.path, new.place, offset, equal_bytes + offset, lost, *shown)


def _long_difference(
    before: PromptParts, after: PromptParts, at: int, equal_bytes: int
) -> PrefixBreak:
    """Return the break where two parts differ that are too long to decode: their bytes around it
    are taken for the text."""
    part = after.parts[at]
    old, new = bytes(before.parts[at].raw), bytes(part.raw)
    at_byte = common_length(old, new)
    offset = text_bytes(old[:at_byte])
    start, end = max(0, at_byte - _AROUND), at_byte + _AROUND
    a, b = (raw[start:end].decode(errors="replace").replace("\\n", "\n") for raw in (old, new))
    common = common_length(a, b)
    other = Cause.MESSAGE if part.is_message else Cause.SYSTEM
    cause = value_cause(a, b, common) or (Cause.TOOLS if part.place == "tools" else other)
    lost = max(0, min(before.num_bytes, after.num_bytes) - equal_bytes - offset)
    shown = _shown(a, b, common)
    return PrefixBreak(cause, part.path, part.place, offset, equal_bytes + offset, lost, *shown)


def _shown(old: str, new: str, common: int) -> tuple[str, str]:
    """Return what two texts have shortly before and behind their difference."""
    start = max(0, common - _SHOWN // 3)
    return old[start : start + _SHOWN], new[start : start + _SHOWN]


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


class CacheBreak(NamedTuple):
    """Why a request finds less in the prefix cache than the one before it left there."""

    cause: Cause
    path: str  # of the part of the prompt in which it differs
    tokens_in: int  # of the prompt before the difference, estimated
    lost_tokens: int  # behind it, which would have been cached, estimated
    is_proven: bool = True  # its sender knows the conversation, and may read where that differs

    @classmethod
    def of(cls, found: PrefixBreak | None, *, tokens_per_byte: float) -> "CacheBreak | None":
        """Return what is said of a difference; None if nothing is lost."""
        lost = int(found.lost_bytes * tokens_per_byte) if found is not None else 0
        if found is None or lost <= 0:
            return None
        tokens_in = int(found.equal_bytes * tokens_per_byte)
        return cls(found.cause, found.path, tokens_in, lost, found.is_proven)

    @property
    def mend(self) -> str:
        """One line on what helps."""
        return MENDS[self.cause]

    @property
    def header(self) -> bytes:
        """Value of a header, ASCII: place, cause, what is lost and what helps."""
        said = self.sentence if self.is_proven else f"diverged: {self.cause}; {self.mend}"
        return said.encode("ascii", "replace")

    @property
    def sentence(self) -> str:
        """All of it, for operators."""
        where = f"diverged at {self.path}, {self.tokens_in} tokens in: {self.cause}"
        return f"{where}; {self.lost_tokens} tokens lost; {self.mend}"

    def as_json(self) -> dict[str, Any]:
        """Return the fields of a receipt."""
        fields: dict[str, Any] = {"cause": str(self.cause), "mend": self.mend}
        if not self.is_proven:
            return fields
        fields |= {
            "path": self.path,
            "tokens_in": self.tokens_in,
            "lost_tokens": self.lost_tokens,
        }
        return fields


def find_break(
    pair: PromptPair, *, kind: EngineKind = "", template: ChatTemplate | None = None
) -> PrefixBreak | None:
    """Return the first difference of two requests; may take a few milliseconds, if both are long.

    Args:
        template: of the model, where it is at hand.
    """
    if pair.is_continued:
        return None
    old, new = pair.before.parts(kind), pair.new.parts(kind)
    found = compare(old, new)
    if found is not None and template is not None:
        found = rendered_break(found, old, new, template)
    return found and found._replace(is_proven=pair.new.proves_to_continue(pair.before))
