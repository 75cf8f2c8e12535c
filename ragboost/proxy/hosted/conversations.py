"""Find the request before a request in its conversation, in bounded memory.

Looks at encoded fields and messages: a request that continues its conversation costs about one
comparison of bytes, whatever its length. Does not know causes. `rewriting.recognition` proves that
a history is the same, by links that change with any of it; here it is sought where it has changed.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ragboost.proxy.hosted.prompt import (
    PROMPTS,
    PromptPart,
    common_length,
    is_system,
    moves_system,
)
from ragboost.proxy.hosted.seen_prompt import MAX_SOUGHT, SeenPrompt
from ragboost.requests.json_body import JsonBody
from ragboost.requests.wires.body import may_have_cache_mark, tool_name
from ragboost.requests.wires.normal_form import EngineKind
from ragboost.requests.wires.registry import ANY
from ragboost.requests.wires.volatile_lines import VOLATILE_LINES, without_lines
from ragboost.util.bounded_map import BoundedMap

_KEYS_PER_PROMPT = 8
_MAX_SHARED = 4  # conversations that a key leads to: those that begin alike
_MAX_MESSAGES = 2000  # requests with more are left alone
_MAX_MOVED_BYTES = 64 * 1024
_COMPARED = 4096  # characters at both ends of a message
_MAX_MOVED = 8  # messages between which breakpoints may have moved
_MESSAGE_BYTES = 160  # of a message's view and sample
_LINE = 64  # characters at both ends of a line that are hashed
_MAX_FRUITLESS = 2  # comparisons of heads of one kind that find nothing, in a row
_ONE_IN = 16  # of the later ones is compared


class Predecessor(NamedTuple):
    """The earlier request that a request is compared with."""

    prompt: SeenPrompt
    is_continued: bool  # byte by byte, but for breakpoints
    is_head_only: bool  # of another conversation, with which this one shares its head
    key: int = 0  # of the heads that are compared with each other


class LastPrompts:
    """The last request of each conversation; the least recently continued are dropped.

    A request with a name continues the conversation of that name. Any other continues one that
    has its first message or one of its last, if it has more in common with it than an opening
    question. One that continues none is compared with the last that has the same tools, or the
    same line at an end of its instructions. All have `max_size` bytes at most.
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
        # The last conversation that each owner began, with the keys of its head. Most begin alike:
        # the keys lead to it only when one comes with another head.
        self._latest: BoundedMap[bytes, tuple[int, Sequence[int]]] = BoundedMap(
            max_entries=max_prompts
        )
        # Hashes of heads with which conversations began: one that was sent before diverges nowhere.
        self._heads: BoundedMap[int, None] = BoundedMap(max_entries=max_prompts)
        # Comparisons of heads in a row that found nothing, by key.
        self._fruitless: BoundedMap[int, int] = BoundedMap(max_entries=max_prompts)
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
        kind: EngineKind = "",
    ) -> tuple[Predecessor, SeenPrompt] | None:
        """Add a request, and return the one before it and itself; None if there is none before it.

        The name of its conversation is unique for its owner. With `has_head`, its tools and
        instructions are compared with those of other conversations.
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
        number, found = self._find(new, kind)
        if number is None:
            self._num = number = self._num + 1
            if has_head:
                new.head_keys, found = self._find_head(new, body)
                self._latest.put(owner, (number, new.head_keys))
        elif found is not None and found.is_continued:
            new.head_keys = found.prompt.head_keys
        new.decoded = []
        size = len(new.raw) + _MESSAGE_BYTES * len(new.messages)
        self._last.put(number, new, size=size)
        self._lead(new.own_keys, number)
        return None if found is None else (found, new)

    def note_compared(self, key: int, *, is_fruitless: bool) -> None:
        """Note what a comparison of heads has found: a kind of them whose text is new in every
        request is compared more rarely."""
        num = (self._fruitless.peek(key) or 0) + 1
        self._fruitless.put(key, num if is_fruitless else 0)

    def _find(self, new: SeenPrompt, kind: EngineKind) -> tuple[int | None, Predecessor | None]:
        """Return the number of a request's conversation and its last request."""
        candidates: dict[int, SeenPrompt] = {}
        for key in new.sought_keys():
            for number in reversed(self._numbers(key)):
                prompt = self._last.peek(number)
                if prompt is None or number in candidates or prompt.owner != new.owner:
                    continue
                candidates[number] = prompt
                if _is_same(prompt, new, kind):
                    return number, Predecessor(prompt, True, False)
            if len(candidates) >= MAX_SOUGHT:
                break
        similar = {
            number: _common_share(prompt, new)
            for number, prompt in candidates.items()
            if new.name_key or _is_similar(prompt, new)
        }
        if not similar:
            return None, None
        number = max(similar, key=lambda each: similar[each])
        return number, Predecessor(candidates[number], False, False)

    def _find_head(
        self, new: SeenPrompt, body: JsonBody
    ) -> tuple[Sequence[int], Predecessor | None]:
        """Return the keys of a request's head, and the last request whose head may be compared."""
        number, keys = self._latest.peek(new.owner) or (0, ())
        latest = self._last.peek(number)
        if latest is not None and latest.head_keys is keys and new.has_head_of(latest):
            return keys, None
        self._lead(keys, number)
        keys = tuple(_head_keys(body, new.owner, new.decoded))
        is_known = new.head_hash() in self._heads
        self._heads.put(new.head_hash(), None)
        for key in () if is_known else keys:
            for number in reversed(self._numbers(key)):
                other = self._last.peek(number)
                if other is None or other.owner != new.owner:
                    continue
                return keys, Predecessor(other, False, True, key) if self._is_due(key) else None
        return keys, None

    def _is_due(self, key: int) -> bool:
        num = self._fruitless.get(key) or 0
        if num <= _MAX_FRUITLESS or num % _ONE_IN == 0:
            return True
        self._fruitless.put(key, num + 1)
        return False

    def _lead(self, keys: Sequence[int], number: int) -> None:
        for key in keys:
            numbers = self._numbers(key)
            others = [other for other in numbers if other != number and other in self._last]
            self._by_key.put(key, (*others, number)[-_MAX_SHARED:])

    def _numbers(self, key: int) -> tuple[int, ...]:
        return self._by_key.get(key) or ()


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


def _head_keys(body: JsonBody, owner: bytes, messages: list[Any]) -> Iterator[int]:
    """Yield the keys under which a request with the same head is found: the names of its tools,
    and the lines at both ends of its instructions."""
    fields = body.fields
    lists = [fields[name] for name in ANY.tools if isinstance(fields.get(name), list)]
    names = [tool_name(tool) for tools in lists for tool in tools]
    if names:
        yield hash((owner, *sorted(names)))
    heads = [fields[name] for name in ANY.instructions if fields.get(name)]
    first = messages[0] if messages and isinstance(messages[0], dict) else {}
    if first.get("role") in ANY.instruction_roles:
        heads.append(first.get("content"))
    for head in heads:
        head = without_lines(head, VOLATILE_LINES)
        blocks = [{"text": head}] if isinstance(head, str) else head
        blocks = blocks if isinstance(blocks, list) else [blocks]
        texts = [block.get("text") for block in blocks if isinstance(block, dict)]
        text = "\n".join([each for each in texts if isinstance(each, str)])
        begin = text[:_COMPARED].strip().split("\n", 1)[0]
        end = text[-_COMPARED:].strip().rsplit("\n", 1)[-1]
        for place, line in enumerate((begin, end)):
            yield hash((owner, place, line[:_LINE], line[-_LINE:]))
