"""Find the request before a request in its conversation, in bounded memory.

Looks at encoded fields and messages: a request that continues its conversation costs about one
comparison of bytes, whatever its length. Does not know causes. `requests.history` proves that
a history is the same, by links that change with any of it; here it is sought where it has changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from ragboost.booster.tokens.chat_template import ChatTemplate
from ragboost.proxy.hosted.prompt import (
    PROMPTS,
    PromptPart,
    PromptParts,
    common_length,
    is_system,
    moves_system,
)
from ragboost.requests.json_body import JsonBody, decode_message
from ragboost.requests.parsed_request import ParsedRequest
from ragboost.requests.wires.body import is_stored, num_instructions
from ragboost.requests.wires.cache_marks import may_have_cache_mark
from ragboost.requests.wires.normal_form import EngineKind
from ragboost.requests.wires.registry import ANY, CONTENTS
from ragboost.util.bounded_map import BoundedMap

MAX_TEAMS = 64
_MAX_BODY_BYTES = 2 * 1024 * 1024
_KEYS_PER_PROMPT = 8
_MAX_SHARED = 4  # conversations that a key leads to: those that begin alike
_MAX_MESSAGES = 2000  # requests with more are left alone
_MAX_MOVED_BYTES = 64 * 1024
_COMPARED = 4096  # characters at both ends of a message
_MAX_MOVED = 8  # messages between which breakpoints may have moved
_MESSAGE_BYTES = 160  # of a message's view and sample
_MAX_SOUGHT = 12  # messages at the end by which a conversation is sought
_HEAD = {"model", *ANY.head_options, *ANY.message_options}
_HEAD |= {*ANY.tools, *ANY.instructions}
_KEPT = _HEAD.union(PROMPTS)
_CONTENTS = (*dict.fromkeys(CONTENTS.values()), "tool_calls", "output", "arguments")
_MAX_ABOVE = 4  # instructions that are looked at
_MAX_OWN = 3  # of the messages at the end, those by which it is found
_SAMPLE = 64  # characters at both ends of a text


class SeenPrompt:
    """A request as it seeks its conversation, and as it is kept: views of its bytes, hashes of its
    messages."""

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
        for at in range(self._last - _MAX_OWN, max(self._first, self._last - _MAX_SOUGHT), -1):
            yield sample(self.owner, self.decoded[at])
        yield first

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


class PromptPair(NamedTuple):
    """A request and the one before it in its conversation."""

    before: SeenPrompt
    new: SeenPrompt
    is_continued: bool  # byte by byte, but for breakpoints


class LastPrompts:
    """The last request of each conversation; the least recently continued are dropped.

    A request with a name continues the conversation of that name. Any other continues one that
    has its first message or one of its last, if it has more in common with it than an opening
    question. All have `max_size` bytes at most.
    """

    def __init__(
        self,
        *,
        max_prompts: int = 1000,
        max_size: int = 128 * 1024 * 1024,
    ) -> None:
        self._last: BoundedMap[int, SeenPrompt] = BoundedMap(
            max_entries=max_prompts, max_size=max_size
        )
        # Numbers of conversations by key, the latest last.
        self._by_key: BoundedMap[int, tuple[int, ...]] = BoundedMap(
            max_entries=max_prompts * _KEYS_PER_PROMPT
        )
        self._num = 0

    def __len__(self) -> int:
        return len(self._last)

    def replace(
        self,
        body: JsonBody,
        *,
        owner: bytes = b"",
        name: str = "",
        where: str = "",
        kind: EngineKind = "",
    ) -> PromptPair | None:
        """Add a request, and return it with the one before it; None if there is none.

        The name of its conversation is unique for its owner.
        """
        for field in PROMPTS:
            if decoded := body.fields.get(field):
                break
        if isinstance(decoded, list):
            if field not in ANY.messages or len(decoded) > _MAX_MESSAGES:
                return None
        elif not isinstance(decoded, str):
            return None
        new = SeenPrompt(body, field, owner=owner, name=name, where=where)
        number, pair = self._find(new, kind)
        new.decoded = []
        size = len(new.raw) + _MESSAGE_BYTES * len(new.messages)
        self._last.put(number, new, size=size)
        for key in new.own_keys:
            numbers = self._by_key.get(key) or ()
            others = [other for other in numbers if other != number and other in self._last]
            self._by_key.put(key, (*others, number)[-_MAX_SHARED:])
        return pair

    def _find(self, new: SeenPrompt, kind: EngineKind) -> tuple[int, PromptPair | None]:
        """Return the number of a request's conversation, and its last request beside this one."""
        candidates: dict[int, SeenPrompt] = {}
        for key in new.sought_keys():
            for number in reversed(self._by_key.get(key) or ()):
                prompt = self._last.peek(number)
                if prompt is None or number in candidates or prompt.owner != new.owner:
                    continue
                candidates[number] = prompt
                if _is_same(prompt, new, kind):
                    return number, PromptPair(prompt, new, True)
            if len(candidates) >= _MAX_SOUGHT:
                break
        similar = {
            number: _common_share(prompt, new)
            for number, prompt in candidates.items()
            if new.name_key or _is_similar(prompt, new)
        }
        if not similar:
            self._num += 1
            return self._num, None
        number = max(similar, key=lambda each: similar[each])
        return number, PromptPair(candidates[number], new, False)


def _is_same(before: SeenPrompt, new: SeenPrompt, kind: EngineKind) -> bool:
    """Return True if a request continues another one byte by byte, but for breakpoints that have
    moved on, from message to message."""
    old, messages = before.messages, new.messages
    if before.head != new.head or len(old) > len(messages):
        return False
    if moves_system(new.head, kind) and any(map(is_system, messages[len(old) :])):
        return False
    if messages[: len(old)] == old:
        return True
    moved = [at for at, raw in enumerate(old) if raw != messages[at]]
    if len(moved) > _MAX_MOVED or sum(len(bytes(old[at])) for at in moved) > _MAX_MOVED_BYTES:
        return False
    for at in moved:
        was, now = bytes(old[at]), bytes(messages[at])
        if not (may_have_cache_mark(was) or may_have_cache_mark(now)):
            return False
        path = f"{new.field}[{at}]"
        if PromptPart(path, old[at], kind).text != PromptPart(path, messages[at], kind).text:
            return False
    return True


def _is_similar(before: SeenPrompt, new: SeenPrompt) -> bool:
    """Return True if a request, looked at more closely, continues another one: it has the last
    message of that, or one much like it in its place, and more than an opening in common."""
    now, samples = new.samples, before.samples
    last = len(samples) - 1
    if last < 0:
        return False
    is_longer = len(now) > len(samples)
    if samples[last] in now:
        old = set(samples)
        return is_longer or any(
            sample in old and not _is_asked(new.decoded[at]) for at, sample in enumerate(now)
        )
    if not is_longer:
        return False
    old_text, new_text = (
        bytes(messages[last]).decode(errors="replace")
        for messages in (before.messages, new.messages)
    )
    return _is_alike(old_text, new_text)


def _common_share(before: SeenPrompt, new: SeenPrompt) -> float:
    old = set(before.samples)
    return len(old.intersection(new.samples)) / max(1, len(old))


def _is_asked(message: Any) -> bool:
    return not isinstance(message, dict) or message.get("role") in ("user", *ANY.instruction_roles)


def _is_alike(old: str, new: str) -> bool:
    a, b = (text[:_COMPARED] + text[_COMPARED:][-_COMPARED:] for text in (old, new))
    same = common_length(a, b)
    same += common_length(a[same:][::-1], b[same:][::-1])
    return 2 * same >= max(min(len(a), len(b)), 1)


class PrefixWatch:
    """The last requests of all users, bounded for each team.

    Args:
        max_bytes: of all teams.
        num_teams: that share them.
        template: of the model, where it is at hand.
    """

    def __init__(
        self,
        *,
        max_bytes: int = 64 << 20,
        num_teams: int = 1,
        template: ChatTemplate | None = None,
    ) -> None:
        self.template = template
        self._max_size = max_bytes // min(max(num_teams, 1), MAX_TEAMS)
        self._teams: BoundedMap[str, LastPrompts] = BoundedMap(max_entries=MAX_TEAMS)

    def observe(self, request: ParsedRequest, *, kind: EngineKind = "") -> PromptPair | None:
        """Add a request; return it with the one before, unless it continues that.

        `kind` is the backend's.
        """
        body, team = request.body, request.tenant_key.team
        if len(body.raw) > min(_MAX_BODY_BYTES, self._max_size) or is_stored(body.fields):
            return None
        last = self._teams.get(team)
        if last is None:
            last = LastPrompts(max_size=self._max_size)
            self._teams.put(team, last)
        name = (request.session or "").partition("/")[2]  # behind what depends on the model
        pair = last.replace(body, owner=request.owner, name=name, kind=kind)
        return None if pair is None or pair.is_continued else pair
