"""Render conversations with the chat template of a local model, to compare their texts.

Knows messages in the form in which vLLM and SGLang give them to a template. Does not fetch models.
"""

import json
import logging
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ragboost.util.jsonl import json_value

logger = logging.getLogger(__name__)

_FILE = "chat_template.jinja"
_CONFIG = "tokenizer_config.json"
# A template is a program, and may fail at what it does not expect.
_FAILURES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatTemplate:
    """The template of one model. Thread-safe.

    Args:
        source: in Jinja.
        tokens: texts of its special tokens, by name.

    Raises:
        ValueError: it is no template that can be compiled here.
    """

    def __init__(self, source: str, *, tokens: dict[str, str]) -> None:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> None:
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._error = TemplateError
        self._tokens = tokens
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ValueError(str(error)) from None

    @classmethod
    def beside(cls, tokenizer: Path | None) -> "ChatTemplate | None":
        """Return the template in the directory of a local tokenizer; None if there is none, or
        none that can be used."""
        if tokenizer is None or not tokenizer.exists():
            return None
        directory = tokenizer if tokenizer.is_dir() else tokenizer.parent
        config = _read(directory / _CONFIG)
        fields = json_value(config)
        fields = fields if isinstance(fields, dict) else {}
        source = _read(directory / _FILE) or _default(fields.get("chat_template"))
        if not source:
            return None
        try:
            return cls(source, tokens={name: _token(fields.get(name)) for name in _NAMED_TOKENS})
        except (ImportError, ValueError) as error:
            logger.info("prompts are compared without the chat template: %s", error)
            return None

    def render(self, messages: Sequence[Any], *, tools: Sequence[Any] = ()) -> str | None:
        """Return the text of a conversation, without the beginning of an answer; None if the
        template refuses it."""
        try:
            return self._template.render(
                messages=list(messages),
                tools=list(tools) or None,
                add_generation_prompt=False,
                **self._tokens,
            )
        except (self._error, *_FAILURES):
            return None


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _default(template: Any) -> str:
    """Return the default one of a model's templates."""
    named = template if isinstance(template, list) else []
    found = [each.get("template") for each in named if each.get("name") == "default"]
    source = found[0] if found else template
    return source if isinstance(source, str) else ""


def _token(value: Any) -> str:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""
