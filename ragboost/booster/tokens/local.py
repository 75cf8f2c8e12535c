"""Count documents with a local tokenizer: in a background thread, or at once for offline jobs."""

import json
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragboost.booster.tokens.counter import TokenCounter
from ragboost.errors import ConfigError, import_extra
from ragboost.types import encodable

if TYPE_CHECKING:
    from ragboost.config import TokenSettings

_FILE = "tokenizer.json"
_BATCH = 16
_POLL_S = 1.0

Encode = Callable[[list[str]], list[list[int]]]


def make_counter(
    settings: "TokenSettings", count_tokens: Callable[[str], int] | None = None
) -> TokenCounter:
    """Return a counter; if the settings name a tokenizer, it makes the estimates exact."""
    counter = TokenCounter(count_tokens)
    if settings.tokenizer is not None and count_tokens is None:
        count_in_background(counter, load_tokenizer(settings.tokenizer))
    return counter


def make_offline_counter(settings: "TokenSettings") -> TokenCounter:
    """Return a counter that remembers no lengths: an offline job counts each document once."""
    if settings.tokenizer is None:
        return TokenCounter(max_documents=1)
    encode = load_tokenizer(settings.tokenizer)
    return TokenCounter(lambda text: len(encode([text])[0]), max_documents=1)


def count_in_background(counter: TokenCounter, encode: Encode) -> threading.Thread:
    """Start a thread that counts the documents of a counter until the counter is garbage."""
    counter.is_counted = True
    thread = threading.Thread(
        target=_run, args=(weakref.ref(counter), encode), name="ragboost-tokens", daemon=True
    )
    thread.start()
    return thread


def _run(reference: "weakref.ref[TokenCounter]", encode: Encode) -> None:
    while (counter := reference()) is not None:
        batch = counter.take_wanted(_BATCH)
        for (key, _), ids in zip(batch, encode([text for _, text in batch]), strict=True):
            counter.learn(key, len(ids))
        has_wanted = counter.has_wanted
        del counter
        has_wanted.wait(_POLL_S)


def load_tokenizer(path: Path) -> Encode:
    """Load a `tokenizer.json`, or a directory's, as a function from texts to token ids."""
    tokenizers: Any = import_extra("tokenizers", extra="tokens")
    from ragboost.config.model_directory import find_model  # loads pydantic

    path = find_model(path, only=_FILE)
    file = path / _FILE if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"tokens.tokenizer: {file} does not exist; give a {_FILE} or a directory with one"
        )
    try:
        text = file.read_text("utf-8")
        is_valid = isinstance(json.loads(text).get("model"), dict)
    except (ValueError, AttributeError):
        is_valid = False
    if not is_valid:
        raise ConfigError(f"tokens.tokenizer: {file} is not a {_FILE}: it has no `model` object")
    tokenizer = tokenizers.Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(texts: list[str]) -> list[list[int]]:
        found = tokenizer.encode_batch(list(map(encodable, texts)), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    return encode
