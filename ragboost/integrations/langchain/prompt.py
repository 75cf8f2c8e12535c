"""A chat prompt that boosts its documents, for single questions and conversations."""

from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document as LangChainDocument
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.prompts.chat import BaseChatPromptTemplate
from pydantic import ConfigDict, Field

from ragboost.booster.booster import Booster
from ragboost.integrations.langchain.documents import KEY, as_document
from ragboost.integrations.turns import boost_turn


class BoostPrompt(BaseChatPromptTemplate):
    """Messages from `question`, `documents` (most relevant first) and optionally `history`.

    The last message carries the documents, the hints and the question. Keep it and the answer as
    the history of the next turn: its documents are then referred to by location hints instead of
    sent again. Their record is part of the message's `additional_kwargs`, so that the history can
    be kept anywhere and shortened by whole messages.
    """

    # One per backend and model, shared by all chains that use them.
    booster: Booster = Field(default_factory=Booster)
    system: str | None = None  # the system prompt; None for no system message
    input_variables: list[str] = ["question", "documents"]  # noqa: RUF012
    optional_variables: list[str] = ["history"]  # noqa: RUF012

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def format_messages(self, **kwargs: Any) -> list[BaseMessage]:
        history: Sequence[BaseMessage] = kwargs.get("history") or ()
        documents: Sequence[LangChainDocument] = kwargs["documents"]
        before = [] if self.system is None else [SystemMessage(self.system)]
        messages: list[BaseMessage] = [*before, *history]
        past = [message.additional_kwargs[KEY] for message in messages if _is_boosted(message)]
        at = next((i for i, m in enumerate(messages) if _is_boosted(m)), len(messages))
        converted = (as_document(document) for document in documents)
        turn = boost_turn(
            self.booster,
            kwargs["question"],
            [document for document in converted if document is not None],
            history=past,
            before=[f"{message.type}:{message.text}" for message in messages[:at]],
        )
        content = turn.context.render()
        return [*messages, HumanMessage(content, additional_kwargs={KEY: turn.record})]

    def pretty_repr(self, html: bool = False) -> str:
        return f"{self.system or ''}\n\n{{history}}\n\n{{documents}}\n\n{{question}}"


def _is_boosted(message: BaseMessage) -> bool:
    return isinstance(message, HumanMessage) and KEY in message.additional_kwargs
