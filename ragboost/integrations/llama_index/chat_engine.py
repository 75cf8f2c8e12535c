"""A chat engine whose documents stay in the history, so that each turn extends the last prefix.

LlamaIndex's own context chat engines write each turn's documents above the history: a prefix cache
then holds nothing of what follows them, and no document can be omitted.
"""

import asyncio
from collections.abc import Sequence
from threading import Thread

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.chat_engine.types import (
    AgentChatResponse,
    BaseChatEngine,
    StreamingAgentChatResponse,
)
from llama_index.core.llms import LLM
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.settings import Settings

from ragboost.booster.booster import Booster
from ragboost.integrations.llama_index.nodes import KEY, as_document
from ragboost.integrations.turns import boost_turn

_RESERVED_TOKENS = 256


class BoostChatEngine(BaseChatEngine):
    """Chat over a retriever that sends a document only once per conversation.

    The memory holds the messages as sent, with documents, hints and question. Their records are
    part of `additional_kwargs`, so that it may forget whole messages. One booster serves all
    engines of a backend and model.
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        llm: LLM | None = None,
        *,
        booster: Booster | None = None,
        memory: BaseMemory | None = None,
        system_prompt: str | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (),
    ) -> None:
        self._retriever = retriever
        self._llm: LLM = llm or Settings.llm
        self._booster = booster or Booster()
        limit = self._llm.metadata.context_window - _RESERVED_TOKENS
        self._memory: BaseMemory = memory or ChatMemoryBuffer.from_defaults(token_limit=limit)
        self._node_postprocessors = node_postprocessors
        self._prefix: list[ChatMessage] = []
        if system_prompt is not None:
            role = self._llm.metadata.system_role
            self._prefix.append(ChatMessage(role=role, content=system_prompt))

    @property
    def chat_history(self) -> list[ChatMessage]:
        return self._memory.get_all()

    def reset(self) -> None:
        self._memory.reset()

    def chat(
        self, message: str, chat_history: list[ChatMessage] | None = None
    ) -> AgentChatResponse:
        """Answer; a turn that fails is not remembered."""
        if chat_history is not None:
            self._memory.set(chat_history)
        nodes, past = self._nodes(message), self._memory.get()
        turn = self._turn(message, nodes, past)
        answer = self._llm.chat(self._shown([*past, turn])).message
        self._memory.put_messages([turn, answer])
        return AgentChatResponse(response=answer.content or "", source_nodes=nodes)

    async def achat(
        self, message: str, chat_history: list[ChatMessage] | None = None
    ) -> AgentChatResponse:
        if chat_history is not None:
            await self._memory.aset(chat_history)
        nodes, past = await self._anodes(message), await self._memory.aget()
        turn = self._turn(message, nodes, past)
        answer = (await self._llm.achat(self._shown([*past, turn]))).message
        await self._memory.aput_messages([turn, answer])
        return AgentChatResponse(response=answer.content or "", source_nodes=nodes)

    def stream_chat(
        self, message: str, chat_history: list[ChatMessage] | None = None
    ) -> StreamingAgentChatResponse:
        if chat_history is not None:
            self._memory.set(chat_history)
        nodes, past = self._nodes(message), self._memory.get()
        turn = self._turn(message, nodes, past)
        stream = self._llm.stream_chat(self._shown([*past, turn]))
        self._memory.put(turn)
        response = StreamingAgentChatResponse(chat_stream=stream, source_nodes=nodes)
        thread = Thread(target=response.write_response_to_history, args=(self._memory,))
        response.write_response_to_history_thread = thread
        thread.start()
        return response

    async def astream_chat(
        self, message: str, chat_history: list[ChatMessage] | None = None
    ) -> StreamingAgentChatResponse:
        if chat_history is not None:
            await self._memory.aset(chat_history)
        nodes, past = await self._anodes(message), await self._memory.aget()
        turn = self._turn(message, nodes, past)
        stream = await self._llm.astream_chat(self._shown([*past, turn]))
        await self._memory.aput(turn)
        response = StreamingAgentChatResponse(achat_stream=stream, source_nodes=nodes)
        response.awrite_response_to_history_task = asyncio.create_task(
            response.awrite_response_to_history(self._memory)
        )
        return response

    def _nodes(self, message: str) -> list[NodeWithScore]:
        nodes = self._retriever.retrieve(message)
        for postprocessor in self._node_postprocessors:
            nodes = postprocessor.postprocess_nodes(nodes, query_bundle=QueryBundle(message))
        return nodes

    async def _anodes(self, message: str) -> list[NodeWithScore]:
        nodes = await self._retriever.aretrieve(message)
        for postprocessor in self._node_postprocessors:
            nodes = await postprocessor.apostprocess_nodes(nodes, query_bundle=QueryBundle(message))
        return nodes

    def _shown(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        return [*self._prefix, *(_without_record(message) for message in messages)]

    def _turn(
        self, question: str, nodes: Sequence[NodeWithScore], past: Sequence[ChatMessage]
    ) -> ChatMessage:
        turn = boost_turn(
            self._booster,
            question,
            map(as_document, nodes),
            behind=[
                (f"{message.role}:{message.content}", message.additional_kwargs.get(KEY))
                for message in (*self._prefix, *past)
            ],
        )
        return ChatMessage(
            role=MessageRole.USER,
            content=turn.context.render(),
            additional_kwargs={KEY: turn.record},
        )


def _without_record(message: ChatMessage) -> ChatMessage:
    if KEY not in message.additional_kwargs:
        return message
    rest = {name: value for name, value in message.additional_kwargs.items() if name != KEY}
    return message.model_copy(update={"additional_kwargs": rest})
