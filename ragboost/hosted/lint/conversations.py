"""Find the request before a request in its conversation, in bounded memory.

Looks at encoded fields and messages: a request that continues its conversation costs about one
comparison of bytes, whatever its length. Does not know causes.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from ragboost.bounded_map import BoundedMap
from ragboost.hosted.lint.prompt import PROMPTS, PromptPart, common_length
from ragboost.rewriting.json_body import JsonBody
from ragboost.wires.body import has_cache_mark
from ragboost.wires.providers import CACHE_MARKS
from ragboost.wires.registry import ANY, CONTENTS

_HEAD = {"model", *ANY.head_options, *ANY.message_options, *CACHE_MARKS}
_HEAD |= {*ANY.tools, *ANY.instructions}
_KEPT = _HEAD.union(PROMPTS)
MARKS = tuple(f'"{mark}"'.encode() for mark in CACHE_MARKS)
_KEYS_PER_PROMPT = 8
_MAX_SHARED = 4  # conversations that a key leads to: those that begin alike
_MAX_ABOVE = 4  # instructions that are looked at
_MAX_SOUGHT = 12  # messages at the end by which a conversation is sought
_MAX_MESSAGES = 2000  # requests with more are left alone
_MAX_MOVED_BYTES = 64 * 1024
_COMPARED = 4096  # characters at both ends of a message
_MAX_MOVED = 8  # messages between which breakpoints may have moved
_MAX_NEAR = 20  # blocks that APIs look back from a breakpoint, at least
_MESSAGE_BYTES = 160  # of a message's view and sample
_SAMPLE = 64  # characters at both ends of a text


class SeenPrompt(NamedTuple):
    """A request as it is kept."""

    owner: bytes
    raw: bytes  # all fields that are part of the prompt, and perhaps others
    head: Mapping[str, Raw]  # fields beside the messages that are part of the prompt
    messages: Sequence[Raw]  # views of `raw`, as above
    samples: tuple[int, ...]  # hash of each message's kind and ends
    time_s: float
    where: str  # file and line of a log


class Predecessor(NamedTuple):
    prompt: SeenPrompt
    # What follows from the bytes alone: the prompt is continued, breakpoints are where they were.
    is_continued: bool
    is_head_only: bool  # of another conversation, with which this one shares its head


class LastPrompts:
    """The last request of each conversation; the least recently continued are dropped.

    A request with a name continues the conversation of that name. Any other continues one that
    has its first message or one of its last, if it has more in common with it than an opening
    question. One that continues none is compared with the last that has the same tools, or the
    same line at an end of its instructions.

    Args:
        max_size: bytes of the requests that are kept; larger ones are not.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        *,
        max_prompts: int = 1000,
        max_size: int = 128 * 1024 * 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._last: BoundedMap[int, SeenPrompt] = BoundedMap(
            max_entries=max_prompts, max_size=max_size
        )
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
        has_head: bool = True,
    ) -> Predecessor | None:
        """Add a request, and return the one before it; None if there is none.

        Args:
            owner: keeps the requests of different users apart.
            name: of its conversation, unique for its owner; empty if it is not named.
            has_head: compare its tools and instructions with those of other conversations.
        """
        field = next((name for name in PROMPTS if body.fields.get(name)), "")
        decoded = body.fields.get(field)
        if isinstance(decoded, str):
            decoded, messages = [decoded], [body.raw_fields[field]]
        elif isinstance(decoded, list) and field in ANY.messages and len(decoded) <= _MAX_MESSAGES:
            messages = body.elements(field)
        else:
            return None
        raw, fields = body.raw, body.raw_fields
        if 2 * memoryview(fields[field]).nbytes < len(raw):  # documents beside the messages
            fields = {name: value.copy() for name, value in fields.items() if name in _KEPT}
            raw, messages = msgspec.json.encode(fields), [message.copy() for message in messages]
        head = {name: value for name, value in fields.items() if name in _HEAD}
        prompt = SeenPrompt(owner, raw, head, messages, (), self._clock(), where)
        search = _Search(prompt, decoded, hash((owner, name)) if name else 0)
        number, found = self._find(search)
        heads: Sequence[int] = ()
        if number is None:
            if has_head:
                heads = tuple(_head_keys(body, owner, decoded))
                found = self._find_head(heads, search)
            self._num = number = self._num + 1
        samples = search.all_samples(found.prompt if found and found.is_continued else None)
        size = len(raw) + _MESSAGE_BYTES * len(messages)
        self._last.put(number, prompt._replace(samples=samples), size=size)
        for key in (*search.own_keys(), *heads):
            self._lead(key, number)
        return found

    def _find(self, search: "_Search") -> tuple[int | None, Predecessor | None]:
        """Return the number of a request's conversation and its last request."""
        candidates: dict[int, SeenPrompt] = {}
        for key in search:
            for number in reversed(self._by_key.peek(key) or ()):
                prompt = self._last.peek(number)
                if prompt is None or number in candidates or prompt.owner != search.prompt.owner:
                    continue
                candidates[number] = prompt
                if _is_same(prompt, search):
                    return number, Predecessor(prompt, True, False)
            if len(candidates) >= _MAX_SOUGHT:
                break
        similar = {
            number: _common_share(prompt, search)
            for number, prompt in candidates.items()
            if search.name_key or _is_similar(prompt, search)
        }
        if not similar:
            return None, None
        number = max(similar, key=lambda each: similar[each])
        return number, Predecessor(candidates[number], False, False)

    def _find_head(self, keys: Sequence[int], search: "_Search") -> Predecessor | None:
        prompt = search.prompt
        for key in keys:
            for number in reversed(self._by_key.peek(key) or ()):
                other = self._last.peek(number)
                if other is None or other.owner != prompt.owner:
                    continue
                above = slice(search.num_above)
                if other.head == prompt.head and other.messages[above] == prompt.messages[above]:
                    return None  # all that could be compared is equal
                return Predecessor(other, False, True)
        return None

    def _lead(self, key: int, number: int) -> None:
        numbers = self._by_key.peek(key) or ()
        if numbers and numbers[-1] == number:
            self._by_key.touch(key)
            return
        others = [other for other in numbers if other != number and other in self._last]
        self._by_key.put(key, (*others, number)[-_MAX_SHARED:])


class _Search:
    """A request that seeks its conversation: samples of its messages, made when needed."""

    def __init__(self, prompt: SeenPrompt, decoded: list[Any], name_key: int) -> None:
        self.prompt = prompt
        self.decoded = decoded
        self.name_key = name_key  # 0 without a name
        self._samples: dict[int, int] = {}
        self.num_above = above = _num_instructions(decoded)
        # Index of the first turn; 0 if there is none.
        self._first = above if above < min(len(decoded), _MAX_ABOVE) else 0

    def sample(self, at: int) -> int:
        if at not in self._samples:
            self._samples[at] = hash((self.prompt.owner, _sample(self.decoded[at])))
        return self._samples[at]

    def __iter__(self) -> Iterator[int]:
        """Yield the keys under which its conversation may be found, the most specific first."""
        if self.name_key:
            yield self.name_key
            return
        first, last = self._first, len(self.decoded) - 1
        for at in range(last, max(first, last - _MAX_SOUGHT), -1):
            yield self.sample(at)
        if last >= 0:
            yield self.sample(first)

    def own_keys(self) -> list[int]:
        """Return the keys under which it is to be found by what continues it."""
        if self.name_key:
            return [self.name_key]
        first, last = self._first, len(self.decoded) - 1
        places = dict.fromkeys((first, *range(max(first, last - 2), last + 1)))
        return [self.sample(at) for at in places if at <= last]

    def all_samples(self, before: SeenPrompt | None) -> tuple[int, ...]:
        """Return the samples of all messages; those of the request that it continues are known."""
        known = before.samples if before is not None else ()
        return known + tuple([self.sample(at) for at in range(len(known), len(self.decoded))])


def _num_instructions(messages: Sequence[Any]) -> int:
    """Count the instructions at the beginning, up to `_MAX_ABOVE`."""
    for at, message in enumerate(messages[:_MAX_ABOVE]):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ANY.instruction_roles:
            return at
    return min(len(messages), _MAX_ABOVE)


def _sample(message: Any) -> tuple[Any, ...]:
    """Return what identifies a message well enough to look at its conversation."""
    if not isinstance(message, dict):
        return (str(message)[:_SAMPLE],)
    kind = message.get("role") or message.get("type")
    content = next((message[n] for n in CONTENTS.values() if message.get(n)), None)
    if content is None:
        content = message.get("tool_calls") or message.get("output") or message.get("arguments")
    if isinstance(content, list) and content and isinstance(content[-1], dict):
        block = content[-1]
        content = block.get("text") or block.get("id") or block.get("tool_use_id")
    text = content if isinstance(content, str) else ""
    return (str(kind), len(text), text[:_SAMPLE], text[-_SAMPLE:])


def _is_same(before: SeenPrompt, search: _Search) -> bool:
    """Return True if a request continues another one byte by byte, but for breakpoints that have
    moved on, from message to message."""
    old, prompt = before.messages, search.prompt
    if before.head != prompt.head or len(old) > len(prompt.messages):
        return False
    if prompt.messages[: len(old)] == old:
        return True
    first = None
    moved = [at for at, raw in enumerate(old) if raw != prompt.messages[at]]
    if len(moved) > _MAX_MOVED or sum(len(bytes(old[at])) for at in moved) > _MAX_MOVED_BYTES:
        return False
    for at in moved:
        was, now = bytes(old[at]), bytes(prompt.messages[at])
        if not any(mark in was or mark in now for mark in MARKS):
            return False
        source = JsonBody(b'{"m":%b}' % was).fields["m"]
        parts = PromptPart("", "", source), PromptPart("", "", search.decoded[at])
        if parts[0].text != parts[1].text:
            return False
        first = at if first is None else first
    return first is not None and _is_read(search.decoded[first:])


def _is_read(messages: Sequence[Any]) -> bool:
    """Return True if a breakpoint is so near that an API finds from there what was written at the
    first of these messages."""
    num_blocks = 0
    for message in messages:
        for block in PromptPart("", "", message).blocks:
            num_blocks += 1
            if has_cache_mark(block):
                return True
            if num_blocks >= _MAX_NEAR:
                return False
    return False


def _is_similar(before: SeenPrompt, search: _Search) -> bool:
    """Return True if a request, looked at more closely, continues another one: it has the last
    message of that, or one much like it in its place, and more than an opening in common."""
    new, last = search.all_samples(None), len(before.samples) - 1
    if last < 0:
        return False
    is_longer = len(new) > len(before.samples)
    if before.samples[last] in new:
        old = set(before.samples)
        return is_longer or any(
            sample in old and not _is_asked(search.decoded[at]) for at, sample in enumerate(new)
        )
    if not is_longer:
        return False
    old_text, new_text = (
        bytes(messages[last]).decode(errors="replace")
        for messages in (before.messages, search.prompt.messages)
    )
    return _is_alike(old_text, new_text)


def _common_share(before: SeenPrompt, search: _Search) -> float:
    old = set(before.samples)
    return len(old.intersection(search.all_samples(None))) / max(1, len(old))


def _is_asked(message: Any) -> bool:
    return not isinstance(message, dict) or message.get("role") in ("user", *ANY.instruction_roles)


def _is_alike(old: str, new: str) -> bool:
    a, b = (text[:_COMPARED] + text[_COMPARED:][-_COMPARED:] for text in (old, new))
    same = common_length(a, b)
    same += common_length(a[same:][::-1], b[same:][::-1])
    return 2 * same >= max(min(len(a), len(b)), 1)


def _head_keys(body: JsonBody, owner: bytes, messages: list[Any]) -> Iterator[int]:
    """Yield the keys under which a request with the same head is found: the names of its tools,
    and the lines at both ends of its instructions."""
    fields = body.fields
    names = []
    for field in ANY.tools:
        for tool in fields[field] if isinstance(fields.get(field), list) else ():
            inner = tool.get("function", tool) if isinstance(tool, dict) else None
            names.append(str(inner.get("name")) if isinstance(inner, dict) else "")
    if names:
        yield hash((owner, *sorted(names)))
    heads = [fields[name] for name in ANY.instructions if fields.get(name)]
    first = messages[0] if messages and isinstance(messages[0], dict) else {}
    if first.get("role") in ANY.instruction_roles:
        heads.append(first.get("content"))
    for head in heads:
        text = head if isinstance(head, str) else PromptPart("", "", head).text
        begin = text[:_COMPARED].strip().split("\n", 1)[0]
        end = text[-_COMPARED:].strip().rsplit("\n", 1)[-1]
        for place, line in enumerate((begin, end)):
            yield hash((owner, place, line[:_SAMPLE], line[-_SAMPLE:]))
