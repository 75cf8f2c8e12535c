"""Convert between text and token ids: tokenizer, chat template, incremental detokenization."""

from collections.abc import Mapping, Sequence
from typing import Any

from ragboost.chunk_cache.core.loading import TEMPLATE_ERRORS
from ragboost.errors import RequestError
from ragboost.types import encodable

_MAX_PENDING_TOKENS = 8  # a character has at most 4 bytes, so at most 4 byte-level tokens


class ChatTokenizer:
    """A Hugging Face tokenizer. One thread may encode while another decodes, not two."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # The first call sets truncation and padding inside the fast tokenizer; later calls only
        # read them, so that decoding in another thread is safe.
        tokenizer("ready", add_special_tokens=False)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        options = {"add_special_tokens": add_special_tokens, "verbose": False}
        ids = self._tokenizer(encodable(text), **options)
        return list(ids["input_ids"])

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Render a conversation with the model's chat template. `add_generation_prompt` defaults to
        true unless the last message is continued. Raises `RequestError`."""
        names = dict(template_kwargs or {})
        names.setdefault("add_generation_prompt", not names.get("continue_final_message", False))
        if not self._tokenizer.chat_template:
            raise RequestError(
                "the model has no chat template; use /v1/completions", param="messages"
            )
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages),
                documents=None if documents is None else list(documents),
                tokenize=False,
                **names,
            )
        except TEMPLATE_ERRORS as error:
            raise RequestError(
                f"messages: the chat template failed: {error}", param="messages"
            ) from None
        return text


class TextStream:
    """Incremental detokenization that ends at stop strings. Text is held back while it may belong
    to one or to an unfinished character, so that the pieces joined are the text decoded at once."""

    def __init__(self, tokenizer: ChatTokenizer, *, stop: Sequence[str] = ()) -> None:
        self.is_stopped = False  # a stop string was found; the text ends before it
        self._tokenizer = tokenizer
        self._stop = [text for text in stop if text]
        self._ids: list[int] = []
        self._first = 0  # tokens before this one are no longer decoded
        self._read = 0  # tokens before this one have been decoded
        self._held = ""

    def push(self, token_id: int) -> str:
        self._ids.append(token_id)
        return self._release(self._decode(is_last=False), is_last=False)

    def finish(self) -> str:
        return self._release(self._decode(is_last=True), is_last=True)

    def _decode(self, *, is_last: bool) -> str:
        # A token's text may depend on the previous one (spaces in SentencePiece), so both are
        # decoded and the decoded part is removed.
        decoded = self._tokenizer.decode(self._ids[self._first : self._read])
        text = self._tokenizer.decode(self._ids[self._first :])
        unfinished = text.endswith("�") and len(self._ids) - self._read < _MAX_PENDING_TOKENS
        if unfinished and not is_last:
            return ""
        self._first, self._read = self._read, len(self._ids)
        return text[len(decoded) :]

    def _release(self, new: str, *, is_last: bool) -> str:
        if self.is_stopped:
            return ""
        text = self._held + new
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.is_stopped = True
            self._held = ""
            return text[: min(found)]
        held = 0 if is_last else max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
