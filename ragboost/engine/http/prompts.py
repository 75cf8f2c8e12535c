"""Build the prompt of a request in token ids, cut at its chunks if they are to be reused.

Knows requests and the tokenizer. Does not know the engine. Tokenising takes time: call it in the
tokenizer's thread. An invalid field raises `RequestError`, which names it.
"""

from ragboost.chunk_cache.core.options import ReuseDefaults
from ragboost.engine.http.extension import KEEP, Extension, check_inside, parse_extension
from ragboost.engine.http.protocol import check_token_ids
from ragboost.engine.http.schemas import ChatCompletionRequest, ChatFields, CompletionRequest
from ragboost.engine.loading import LoadedModel
from ragboost.engine.runtime.prompt import CutPrompt, PromptTokens
from ragboost.engine.text.cutting import cut_text, cut_tokens, find_documents, find_in_messages
from ragboost.errors import RequestError
from ragboost.graph.conversation import GraphPrompt


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

    def chat_ids(self, chat: ChatFields) -> list[int]:
        """Return the ids of a conversation, without chunk reuse."""
        return self._encode(self._render(chat))

    def build(self, wanted: ChatCompletionRequest | CompletionRequest) -> PromptTokens:
        """Return the prompt of a chat or text completion."""
        is_chat = isinstance(wanted, ChatCompletionRequest)
        extension = parse_extension(wanted.ragboost, self._reuse, is_chat=is_chat)
        if isinstance(wanted, ChatCompletionRequest):
            return self._chat(wanted, extension)
        return self._text(wanted.prompt, extension)

    def _chat(self, chat: ChatCompletionRequest, extension: Extension) -> PromptTokens:
        messages, by_message = chat.messages, extension.spans
        if extension.graph is not None:
            if chat.documents:
                raise RequestError(
                    "documents and ragboost.graph exclude each other", param="documents"
                )
            graph = self._graphs.prompt(
                extension.graph, messages, template_kwargs=chat.template_kwargs
            )
            if isinstance(graph, GraphPrompt):
                return PromptTokens(graph.layout.tokens, graph=graph)
            return PromptTokens(graph)
        for number, spans in by_message.items():
            if number >= len(messages):
                raise RequestError(
                    f"ragboost.chunks names message {number} of {len(messages)}",
                    param="ragboost.chunks",
                )
            check_inside(spans, len(messages[number]["content"]))
        text = self._render(chat)
        if extension.reuse is None:
            return PromptTokens(self._encode(text))
        found = find_in_messages(text, messages, by_message)
        if not by_message and chat.documents:
            found = find_documents(text, chat.documents)
        # Stored chunks of a conversation were computed before it had a history.
        question = next((n for n, m in enumerate(messages) if m["role"] == "user"), 0)
        is_later = bool(by_message) and min(by_message) > question
        end = text.find(messages[question]["content"]) if is_later else -1
        cut = cut_text(text, found, self._encode, system_end=end if end >= 0 else None)
        return self._reusing(cut, extension)

    def _text(self, prompt: str | list[int], extension: Extension) -> PromptTokens:
        spans, whole = extension.spans.get(0, ()), self._tokenizer.encode
        check_inside(spans, len(prompt))
        if isinstance(prompt, list):
            prompt = check_token_ids(prompt, "prompt", vocab_size=self._vocab_size)
        if extension.reuse is None:
            return PromptTokens(whole(prompt) if isinstance(prompt, str) else prompt)
        if isinstance(prompt, list):
            return self._reusing(cut_tokens(prompt, spans), extension)
        return self._reusing(cut_text(prompt, spans, self._encode, encode_first=whole), extension)

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

    def _render(self, chat: ChatFields) -> str:
        return self._tokenizer.render_chat(
            chat.messages, documents=chat.documents, template_kwargs=chat.template_kwargs
        )

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)
