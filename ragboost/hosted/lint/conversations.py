"""Find the conversation that a logged request continues, in bounded memory."""

from ragboost.bounded_map import BoundedMap
from ragboost.hosted.lint.prompt import LoggedPrompt, common_length

_MAX_CONVERSATIONS = 1000
_MAX_BYTES = 128 * 1024 * 1024
_MAX_MESSAGES = 200_000


class LoggedConversations:
    """The last request of each conversation in a log; the least recently continued are dropped.

    A request with a name continues the conversation of that name. Any other continues the one that
    has most of its messages, if that is more than an opening question that both share.
    """

    def __init__(self) -> None:
        self._last: BoundedMap[str, LoggedPrompt] = BoundedMap(
            max_entries=_MAX_CONVERSATIONS, max_size=_MAX_BYTES
        )
        self._by_message: BoundedMap[bytes, str] = BoundedMap(max_entries=_MAX_MESSAGES)
        self._num = 0

    def continue_with(self, prompt: LoggedPrompt) -> LoggedPrompt | None:
        """Add a request; return the request before it in its conversation, or None."""
        key = f"name {prompt.name}" if prompt.name else self._recognise(prompt)
        before = None
        if key is None:
            self._num += 1
            key = f"number {self._num}"
        else:
            before = self._last.get(key)
        self._last.put(key, prompt, size=prompt.num_bytes)
        for message in prompt.messages:
            self._by_message.put(message.digest, key)
        return before

    def _recognise(self, prompt: LoggedPrompt) -> str | None:
        messages = prompt.messages
        counts: dict[str, int] = {}
        for message in messages:
            key = self._by_message.peek(message.digest)
            if key is not None:
                counts[key] = counts.get(key, 0) + 1
        for key in sorted(counts, key=lambda each: counts[each], reverse=True):
            before = self._last.peek(key)
            if before is not None and _is_continued(before, prompt):
                return key
        return None


def _is_continued(before: LoggedPrompt, prompt: LoggedPrompt) -> bool:
    old, new = before.messages, prompt.messages
    at = {message.digest: index for index, message in enumerate(old)}
    answers = [
        (index, at[message.digest])
        for index, message in enumerate(new)
        if message.digest in at and not message.place.startswith(("user", "prompt"))
    ]
    if not old or any(index < was for index, was in answers):
        return bool(old)  # moved up: the history was truncated
    is_longer = len(new) > len(old)
    if any(message.digest == old[-1].digest for message in new):
        return is_longer or bool(answers)
    return is_longer and _is_similar(old[-1].text, new[len(old) - 1].text)


def _is_similar(old: str, new: str) -> bool:
    shorter = min(len(old), len(new))
    same = common_length(old, new)
    same += common_length(old[same:][::-1], new[same:][::-1])
    return 2 * same >= max(shorter, 1)
