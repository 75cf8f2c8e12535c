"""A local tokenizer: counts documents as the engine does, if it is the model's own.

Needs the extra `tokens`. Does not know documents or threads.
"""

import json
from pathlib import Path
from typing import Any

from ragboost.errors import ConfigError, import_extra

_FILE = "tokenizer.json"


def load_tokenizer(path: Path) -> "LocalTokenizer":
    """Load a `tokenizer.json`, or the one in a model's directory.

    Raises:
        ConfigError: there is none, or it cannot be read.
        MissingExtraError: the package `tokenizers` is not installed.
    """
    tokenizers: Any = import_extra("tokenizers", extra="tokens")
    file = path / _FILE if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"tokens.tokenizer: there is no {file}; give a {_FILE} or a directory that has one"
        )
    try:
        text = file.read_text("utf-8")
        is_one = isinstance(json.loads(text).get("model"), dict)
    except (ValueError, AttributeError):
        is_one = False
    if not is_one:
        raise ConfigError(f"tokens.tokenizer: {file} is no {_FILE}: it has no `model`")
    return LocalTokenizer(tokenizers.Tokenizer.from_str(text))


class LocalTokenizer:
    """Encodes texts without the tokens that only stand at the ends of a prompt."""

    def __init__(self, tokenizer: Any) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text."""
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        found = self._tokenizer.encode_batch(clean, add_special_tokens=False)
        return [encoding.ids for encoding in found]
