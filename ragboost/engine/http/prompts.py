"""Build the prompt of a request in token ids, with the positions of its chunks. Call it in the
tokenizer's thread. An invalid field raises `RequestError`, which names it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ragboost.chunk_cache.core.request import ReuseDefaults
from ragboost.chunk_cache.http.spans import find_spans, pack_ids
from ragboost.engine.http.protocol import check_token_ids
from ragboost.engine.http.schemas import (
    ChatCompletionRequest,
    ChatFields,
    CompletionRequest,
    Extension,
    check_inside,
    parse_extension,
)
from ragboost.engine.loading import LoadedModel
from ragboost.engine.runtime.request import PromptTokens
from ragboost.errors import RequestError
from ragboost.graph.layout import Layout


class Prompts:
    """Builds the prompts of one model."""

    def __init__(self, loaded: LoadedModel, *, reuse: ReuseDefaults) -> None:
        self._tokenizer = loaded.tokenizer
        self._graphs = loaded.graphs
        self._vocab_size = loaded.runner.vocab_size
        self._reuse = reuse

    def chat_ids(self, chat: ChatFields) -> list[int]:
        return self._encode(self._render(chat))

    def build(self, fields: ChatCompletionRequest | CompletionRequest) -> PromptTokens:
        is_chat = isinstance(fields, ChatCompletionRequest)
        extension = parse_extension(fields.ragboost, self._reuse, is_chat=is_chat)
        if isinstance(fields, ChatCompletionRequest):
            prompt, param = self._chat(fields, extension), "messages"
        else:
            prompt, param = self._text(fields.prompt, extension), "prompt"
        last = max(prompt.token_ids, default=None)
        if last is None:
            raise RequestError(f"{param} has no tokens", param=param)
        if last >= self._vocab_size:
            raise RequestError(
                f"{param} has token {last} of the tokenizer, but the model's vocabulary ends at "
                f"{self._vocab_size}",
                param=param,
            )
        return prompt

    def _chat(self, chat: ChatCompletionRequest, extension: Extension) -> PromptTokens:
        messages, positions = chat.messages, extension.positions
        if extension.graph is not None:
            if chat.documents:
                raise RequestError(
                    "documents and ragboost.graph exclude each other", param="documents"
                )
            graph = self._graphs.prompt(
                extension.graph, messages, template_kwargs=chat.template_kwargs
            )
            if isinstance(graph, Layout):
                return PromptTokens(graph.tokens, graph=graph)
            return PromptTokens(graph)
        for number, _, stop in positions:
            if number >= len(messages):
                raise RequestError(
                    f"ragboost.chunks names message {number} of {len(messages)}",
                    param="ragboost.chunks",
                )
            check_inside(stop, len(messages[number]["content"]))
        text = self._render(chat)
        texts = [messages[number]["content"][start:stop] for number, start, stop in positions]
        if not positions and chat.documents:
            texts = document_texts(text, chat.documents)
        return self._found(self._encode(text), texts, extension)

    def _text(self, prompt: str | list[int], extension: Extension) -> PromptTokens:
        positions = extension.positions
        check_inside(positions[-1].stop if positions else 0, len(prompt))
        if isinstance(prompt, str):
            texts = [prompt[start:stop] for _, start, stop in positions]
            return self._found(self._tokenizer.encode(prompt), texts, extension)
        tokens = check_token_ids(prompt, "prompt", vocab_size=self._vocab_size)
        if extension.chunks is None:
            return PromptTokens(tokens)
        spans = tuple((start, stop) for _, start, stop in positions)
        return PromptTokens(tokens, replace(extension.chunks, chunks=spans))

    def _found(self, tokens: list[int], texts: Sequence[str], extension: Extension) -> PromptTokens:
        if extension.chunks is None:
            return PromptTokens(tokens)
        chunks = [pack_ids(self._encode(text)) for text in texts]
        exact = find_spans(tokens, chunks[: extension.chunks.exact_chunks])
        spans = tuple(find_spans(tokens, chunks))
        return PromptTokens(
            tokens, replace(extension.chunks, chunks=spans, exact_chunks=len(exact))
        )

    def _render(self, chat: ChatFields) -> str:
        return self._tokenizer.render_chat(
            chat.messages, documents=chat.documents, template_kwargs=chat.template_kwargs
        )

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def document_texts(text: str, documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the texts of the documents in a rendered conversation, each with a title before it."""
    texts: list[str] = []
    cursor = 0
    for document in documents:
        body, title = document.get("text") or document.get("content"), document.get("title")
        if not isinstance(body, str) or (begin := text.find(body, cursor)) < 0:
            continue
        stop = begin + len(body)
        if isinstance(title, str) and title:
            before = text[cursor:begin].rstrip()
            begin = cursor + len(before) - len(title) if before.endswith(title) else begin
        texts.append(text[begin:stop])
        cursor = stop
    return texts
