"""Build the prompt of a request body in token ids, cut at its chunks if they are to be reused.

Knows bodies and the tokenizer. Does not know the engine. Tokenising takes time: call it in the
tokenizer's thread. An invalid field raises `RequestError`, which names it.
"""

from typing import Any

from ragboost.engine.http import protocol
from ragboost.engine.http.extension import KEEP, Extension, check_inside, parse_extension
from ragboost.engine.loading import LoadedModel
from ragboost.engine.runtime.prompt import CutPrompt, PromptTokens
from ragboost.engine.text.cutting import cut_text, cut_tokens, find_documents, find_in_messages
from ragboost.engine.text.graph_prompts import GraphRequest
from ragboost.engine_chunks.options import ReuseDefaults
from ragboost.errors import RequestError


class Prompts:
    """Builds the prompts of one model.

    Args:
        loaded: the model.
        reuse: defaults of chunk reuse.
        keep_tokens: tokens that remain of a prompt with chunk reuse, unless a request says; None:
            all.
    """

    def __init__(
        self, loaded: LoadedModel, *, reuse: ReuseDefaults, keep_tokens: int | None = None
    ) -> None:
        self._tokenizer = loaded.tokenizer
        self._graphs = loaded.graphs
        self._vocab_size = loaded.runner.vocab_size
        self._reuse = reuse
        self._keep_tokens = keep_tokens

    def chat_ids(self, body: protocol.Body) -> list[int]:
        """Return the ids of a chat request, without chunk reuse."""
        return self._encode(self._render(body)[0])

    def chat(self, body: protocol.Body) -> PromptTokens:
        """Return the prompt of a chat request."""
        extension = parse_extension(body, self._reuse)
        if extension.graph is not None:
            return self._graph(extension.graph, body)
        text, messages, documents = self._render(body)
        by_message = extension.spans
        for number, spans in by_message.items():
            if number >= len(messages):
                raise RequestError(
                    f"ragboost.chunks names message {number} of {len(messages)}",
                    param="ragboost.chunks",
                )
            check_inside(spans, len(messages[number]["content"]))
        if extension.reuse is None:
            return PromptTokens(self._encode(text))
        found = find_in_messages(text, messages, by_message)
        if not by_message and documents:
            found = find_documents(text, documents)
        # Stored chunks of a conversation were computed before it had a history.
        question = next((n for n, m in enumerate(messages) if m["role"] == "user"), 0)
        is_later = bool(by_message) and min(by_message) > question
        end = text.find(messages[question]["content"]) if is_later else -1
        cut = cut_text(text, found, self._encode, system_end=end if end >= 0 else None)
        return self._reusing(cut, extension)

    def text(self, body: protocol.Body) -> PromptTokens:
        """Return the prompt of a text completion."""
        extension = parse_extension(body, self._reuse)
        given = protocol.parse_prompt(body, vocab_size=self._vocab_size)
        spans = extension.spans.get(0, ())
        check_inside(spans, len(given))
        whole = self._tokenizer.encode
        if extension.reuse is None:
            return PromptTokens(whole(given) if isinstance(given, str) else given)
        if isinstance(given, list):
            return self._reusing(cut_tokens(given, spans), extension)
        cut = cut_text(given, spans, self._encode, encode_first=whole)
        return self._reusing(cut, extension)

    def _reusing(self, cut: CutPrompt, extension: Extension) -> PromptTokens:
        least, keep = len(cut.system) + len(cut.question), extension.keep_tokens
        if keep is not None and keep < least:
            raise RequestError(
                f"{KEEP} must be at least {least}, the tokens of system prompt and question, "
                f"got {keep}",
                param=KEEP,
            )
        if keep is None and self._keep_tokens is not None:
            keep = max(self._keep_tokens, least)
        return PromptTokens(cut.token_ids, cut, extension.reuse, keep_tokens=keep)

    def _graph(self, graph: GraphRequest, body: protocol.Body) -> PromptTokens:
        if protocol.parse_documents(body):
            raise RequestError("documents and ragboost.graph exclude each other", param="documents")
        return self._graphs.prompt(
            graph,
            protocol.parse_messages(body),
            template_kwargs=protocol.parse_template_kwargs(body),
        )

    def _render(
        self, body: protocol.Body
    ) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]] | None]:
        messages = protocol.parse_messages(body)
        documents = protocol.parse_documents(body)
        names = protocol.parse_template_kwargs(body)
        text = self._tokenizer.render_chat(messages, documents=documents, template_kwargs=names)
        return text, messages, documents

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)
