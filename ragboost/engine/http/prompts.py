"""From a request body to a prompt in token ids, cut at its chunks where these are to be reused.

Knows bodies and the tokenizer. Does not know the engine. Tokenising takes a while: call it in the
tokenizer's thread.
"""

from typing import Any

from ragboost.engine.http import protocol
from ragboost.engine.http.extension import Extension, ReuseDefaults, check_inside, parse_extension
from ragboost.engine.http.generation import PromptTokens
from ragboost.engine.http.graph_request import GraphRequest
from ragboost.engine.parts import Parts, cut_text, cut_tokens, find_documents, find_in_messages
from ragboost.engine.runtime.graph import Graphs
from ragboost.engine.tokenizer import ChatTokenizer
from ragboost.errors import RequestError


class Prompts:
    """Reads the prompts of one model.

    Args:
        tokenizer: of the model.
        vocab_size: of the model.
        reuse: for requests that do not say.
        graphs: lays out prompts with graphs.
    """

    def __init__(
        self, tokenizer: ChatTokenizer, *, vocab_size: int, reuse: ReuseDefaults, graphs: Graphs
    ) -> None:
        self._tokenizer = tokenizer
        self._graphs = graphs
        self._vocab_size = vocab_size
        self._reuse = reuse

    def chat_ids(self, body: protocol.Body) -> list[int]:
        """The ids of a chat request that reuses nothing.

        Raises:
            RequestError: a field has a bad value.
        """
        return self._encode(self._rendered(body)[0])

    def chat(self, body: protocol.Body) -> PromptTokens:
        """The prompt of a chat request.

        Raises:
            RequestError: a field has a bad value.
        """
        extension = parse_extension(body, self._reuse)
        if extension.graph is not None:
            return self._graph(extension.graph, body)
        text, messages, documents = self._rendered(body)
        for number, spans in extension.by_message.items():
            if number >= len(messages):
                raise RequestError(
                    f"ragboost.chunks names message {number} of {len(messages)}",
                    param="ragboost.chunks",
                )
            check_inside(spans, len(messages[number]["content"]))
        if extension.reuse is None:
            return PromptTokens(self._encode(text))
        by_message = extension.by_message
        found = find_in_messages(text, messages, by_message)
        if not by_message and documents:
            found = find_documents(text, documents)
        # Stored chunks of a conversation were computed before it had a history.
        question = next((n for n, m in enumerate(messages) if m["role"] == "user"), 0)
        is_later = bool(by_message) and min(by_message) > question
        end = text.find(messages[question]["content"]) if is_later else -1
        parts = cut_text(text, found, self._encode, system_end=end if end >= 0 else None)
        return self._prompt(parts, extension)

    def text(self, body: protocol.Body) -> PromptTokens:
        """The prompt of a text completion.

        Raises:
            RequestError: a field has a bad value.
        """
        extension = parse_extension(body, self._reuse)
        given = protocol.parse_prompt(body, vocab_size=self._vocab_size)
        check_inside(extension.spans, len(given))
        if isinstance(given, list):
            if extension.reuse is None:
                return PromptTokens(given)
            return self._prompt(cut_tokens(given, extension.spans), extension)
        whole = self._tokenizer.encode
        if extension.reuse is None:
            return PromptTokens(whole(given))
        parts = cut_text(given, extension.spans, self._encode, encode_first=whole)
        return self._prompt(parts, extension)

    def _graph(self, graph: GraphRequest, body: protocol.Body) -> PromptTokens:
        messages = protocol.parse_messages(body)
        names = protocol.parse_template_kwargs(body)
        if protocol.parse_documents(body):
            raise RequestError("documents and ragboost.graph exclude each other", param="documents")
        if self._graphs.attention(graph) == "self":
            written = self._graphs.written_out(graph, messages)
            text = self._tokenizer.render_chat(written, template_kwargs=names)
            return PromptTokens(self._encode(text))
        laid_out = self._graphs.prompt(graph, messages, template_kwargs=names)
        return PromptTokens(laid_out.layout.tokens, graph=laid_out)

    def _rendered(
        self, body: protocol.Body
    ) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]] | None]:
        messages = protocol.parse_messages(body)
        documents = protocol.parse_documents(body)
        names = protocol.parse_template_kwargs(body)
        text = self._tokenizer.render_chat(messages, documents=documents, template_kwargs=names)
        return text, messages, documents

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    @staticmethod
    def _prompt(parts: Parts, extension: Extension) -> PromptTokens:
        return PromptTokens(parts.token_ids, parts, extension.reuse)
