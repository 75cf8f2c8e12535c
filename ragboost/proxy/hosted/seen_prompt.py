"""A request as it seeks its conversation, and as it is kept: views of its bytes, hashes of its
messages. Does not know other requests' prompts but by these.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from ragboost.proxy.hosted.prompt import PROMPTS, PromptParts
from ragboost.requests.json_body import JsonBody, decode_message
from ragboost.requests.wires.body import num_instructions
from ragboost.requests.wires.normal_form import EngineKind
from ragboost.requests.wires.registry import ANY, CONTENTS

MAX_SOUGHT = 12  # messages at the end by which a conversation is sought
_HEAD = {"model", *ANY.head_options, *ANY.message_options}
_HEAD |= {*ANY.tools, *ANY.instructions}
_KEPT = _HEAD.union(PROMPTS)
_CONTENTS = (*dict.fromkeys(CONTENTS.values()), "tool_calls", "output", "arguments")
_MAX_ABOVE = 4  # instructions that are looked at
_MAX_OWN = 3  # of the messages at the end, those by which it is found
_SAMPLE = 64  # characters at both ends of a text


class SeenPrompt:
    """A request as it seeks its conversation, and as it is kept."""

    def __init__(self, body: JsonBody, field: str, *, owner: bytes, name: str, where: str) -> None:
        fields, raw, decoded = body.raw_fields, body.raw, body.fields[field]
        is_list = isinstance(decoded, list)
        messages = body.elements(field) if is_list else [fields[field]]
        if 2 * memoryview(fields[field]).nbytes < len(raw):  # documents beside the messages
            fields = {name: value.copy() for name, value in fields.items() if name in _KEPT}
            raw, messages = msgspec.json.encode(fields), [message.copy() for message in messages]
        self.owner = owner
        self.field = field
        self.raw = raw  # all fields that are part of the prompt, and perhaps others
        # Fields beside the messages that are part of the prompt.
        self.head = {name: value for name, value in fields.items() if name in _HEAD}
        self.messages: Sequence[Raw] = messages  # views of `raw`, as above
        self.decoded: list[Any] = decoded if is_list else [decoded]  # empty once it is kept
        self.name_key = hash((owner, name)) if name else 0  # of its conversation; 0 without a name
        # Of its tools and instructions, under which it is found; None if these were not looked at.
        self.head_keys: Sequence[int] | None = None
        self.where = where  # file and line of a log
        self.num_above = above = num_instructions(self.decoded[:_MAX_ABOVE])
        self._last = last = len(self.decoded) - 1
        # The first message of a turn; 0 if there is none.
        self._first = first = above if above <= last and above < _MAX_ABOVE else 0
        # The keys under which what continues it is to find it.
        self.own_keys: Sequence[int] = (self.name_key,)
        if not name:
            places = (*range(last, max(first, last - _MAX_OWN), -1), first)
            self.own_keys = [sample(owner, self.decoded[at]) for at in places]
        self._samples: list[int] = []

    def sought_keys(self) -> Iterator[int]:
        """Yield the keys under which its conversation may be found, the most specific first."""
        if self.name_key:
            yield self.name_key
            return
        *latest, first = self.own_keys
        yield from latest
        for at in range(self._last - _MAX_OWN, max(self._first, self._last - MAX_SOUGHT), -1):
            yield sample(self.owner, self.decoded[at])
        yield first

    def has_head_of(self, other: "SeenPrompt") -> bool:
        above = slice(self.num_above)
        return other.head == self.head and other.messages[above] == self.messages[above]

    def head_hash(self) -> int:
        head = [(name, bytes(value)) for name, value in sorted(self.head.items())]
        return hash((self.owner, *head, *map(bytes, self.messages[: self.num_above])))

    @property
    def samples(self) -> list[int]:
        """Hashes of each message's kind and ends."""
        if not self._samples and self.messages:
            decoded = self.decoded or map(decode_message, self.messages)
            self._samples = [sample(self.owner, message) for message in decoded]
        return self._samples

    def proves_to_continue(self, other: "SeenPrompt") -> bool:
        """Return True if the last answer in another request is in this one: only who has read that
        conversation can send it. Earlier ones may be examples that many have."""
        answers = (at for at in range(len(other.messages) - 1, -1, -1) if other.is_answer(at))
        return (last := next(answers, None)) is not None and other.samples[last] in self.samples

    def is_answer(self, at: int) -> bool:
        """Return True for a message that the model has written, and that has a text."""
        raw = bytes(self.messages[at])
        if b'"assistant"' not in raw and b"_call" not in raw:
            return False
        message = decode_message(self.messages[at])
        if not isinstance(message, dict) or not _sampled_text(message):
            return False
        return message.get("role") == "assistant" or str(message.get("type")).endswith("_call")

    def parts(self, kind: EngineKind) -> PromptParts:
        """Divide its prompt."""
        head, messages = self.head, self.messages
        return PromptParts.of(head, self.field, messages, num_above=self.num_above, kind=kind)


def sample(owner: bytes, message: Any) -> int:
    """Hash what identifies a message well enough to look at its conversation."""
    if not isinstance(message, dict):
        return hash((owner, str(message)[:_SAMPLE]))
    kind, text = message.get("role") or message.get("type"), message.get("content")
    if type(kind) is not str:
        kind = str(kind)
    if type(text) is not str or not text:
        text = _sampled_text(message)
    return hash((owner, kind, len(text), text[:_SAMPLE], text[-_SAMPLE:]))


def _sampled_text(message: Mapping[str, Any]) -> str:
    for name in _CONTENTS:
        if content := message.get(name):
            break
    if isinstance(content, list) and content and isinstance(content[-1], dict):
        block = content[-1]
        content = block.get("text") or block.get("id") or block.get("tool_use_id")
    return content if isinstance(content, str) else ""
