"""A chat prompt that boosts its documents, for single questions and conversations."""

import hashlib
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any

from langchain_core.documents import Document as LangChainDocument
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.prompts.chat import BaseChatPromptTemplate
from langchain_core.runnables import ensure_config
from pydantic import ConfigDict, Field, PrivateAttr

from ragboost.booster.booster import Booster
from ragboost.integrations.langchain.documents import KEY, as_document
from ragboost.integrations.turns import Record, boost_turn
from ragboost.util.bounded_map import BoundedMap

_NAMES = ("user_id", "session_id", "conversation_id", "thread_id")
_MAX_QUESTIONS = 10_000
_MAX_BYTES = 64 * 1024 * 1024
_MESSAGE_BYTES = 2_000  # of a message and its record, beside the text

_Names = tuple[tuple[str, str], ...]


class BoostPrompt(BaseChatPromptTemplate):
    """Messages from `question`, `documents` (most relevant first) and optionally `history`.

    The last message carries the documents, the hints and the question. Keep it and the answer as
    the history of the next turn: its documents are then referred to by location hints. Their record
    is part of the message's `additional_kwargs`, so that the history can be kept anywhere and
    shortened by whole messages.

    `RunnableWithMessageHistory` and most LangGraph graphs keep the bare question instead. In a run
    whose configuration names the conversation (`session_id`, `thread_id`), the question is sent
    again as it was sent, if this process sent it.
    """

    # One per backend and model, shared by all chains that use them.
    booster: Booster = Field(default_factory=Booster)
    system: str | None = None  # the system prompt; None for no system message
    input_variables: list[str] = ["question", "documents"]  # noqa: RUF012
    optional_variables: list[str] = ["history"]  # noqa: RUF012

    # What was sent in place of a question, by conversation and digest of the messages up to it.
    _sent: BoundedMap[tuple[_Names, bytes], HumanMessage] = PrivateAttr(
        default_factory=lambda: BoundedMap(max_entries=_MAX_QUESTIONS, max_size=_MAX_BYTES)
    )
    _lock: Any = PrivateAttr(default_factory=Lock)

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def format_messages(self, **kwargs: Any) -> list[BaseMessage]:
        history: Sequence[BaseMessage] = kwargs.get("history") or ()
        documents: Sequence[LangChainDocument] = kwargs["documents"]
        before = [] if self.system is None else [SystemMessage(self.system)]
        names, plain = _conversation(), [*before, *history]
        messages: list[BaseMessage] = self._as_sent(plain, names) if names else plain
        turn = boost_turn(
            self.booster,
            kwargs["question"],
            map(as_document, documents),
            behind=[(f"{message.type}:{message.text}", _record(message)) for message in messages],
        )
        content = turn.context.render()
        message = HumanMessage(content, additional_kwargs={KEY: turn.record})
        if names:
            links = list(_links([*plain, HumanMessage(kwargs["question"])]))
            with self._lock:
                self._sent.put((names, links[-1]), message, size=_size(message))
        return [*messages, message]

    def _as_sent(self, messages: list[BaseMessage], names: _Names) -> list[BaseMessage]:
        with self._lock:
            return [
                (self._sent.get((names, link)) if isinstance(message, HumanMessage) else None)
                or message
                for message, link in zip(messages, _links(messages), strict=True)
            ]

    def pretty_repr(self, html: bool = False) -> str:
        return f"{self.system or ''}\n\n{{history}}\n\n{{documents}}\n\n{{question}}"


def _conversation() -> _Names:
    """Return what the running chain's configuration calls the conversation; empty if nothing."""
    fields = ensure_config().get("configurable", {})
    names = tuple([(name, str(fields[name])) for name in _NAMES if fields.get(name)])
    return names if {name for name, _ in names} - {"user_id"} else ()


def _links(messages: Sequence[BaseMessage]) -> Iterator[bytes]:
    """Yield for each message a digest of it and of all before it."""
    digest = hashlib.sha256()
    for message in messages:
        text = message.text.encode("utf-8", "surrogatepass")
        digest.update(b"%s %d " % (message.type.encode(), len(text)))
        digest.update(text)
        yield digest.digest()


def _size(message: HumanMessage) -> int:
    return 2 * len(message.text) + _MESSAGE_BYTES


def _record(message: BaseMessage) -> Record | None:
    return message.additional_kwargs.get(KEY) if isinstance(message, HumanMessage) else None
