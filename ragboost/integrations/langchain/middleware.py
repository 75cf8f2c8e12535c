"""An agent middleware that sends documents only once, however often tools retrieve them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.documents import Document as LangChainDocument
from langchain_core.messages import AIMessage, ToolMessage

from ragboost.config import Settings
from ragboost.requests.formats import TooManyDocumentsError
from ragboost.requests.formats.frames import scan
from ragboost.requests.formats.frames.spans import strip
from ragboost.requests.formats.groups import DocumentBlock, Edit, Group, TextGroup, splice
from ragboost.requests.formats.references import EarlierTexts, stands_alone


class BoostMiddleware(AgentMiddleware[Any, Any, Any]):
    """Replace documents in tool messages that occur earlier in the conversation by references.

    Documents are found in a message's artifact, where `create_retriever_tool` puts them with
    `response_format="content_and_artifact"`, or in its text, in the shapes that the proxy knows.
    The model's input changes, the agent's state does not. The same messages always yield the same
    bytes, so that each step extends the prefix of the last one. Documents are not reordered: no
    other request shares the prefix after a question that only this agent asked.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__()
        self._settings = settings or Settings()

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | AIMessage:
        return handler(self._boosted(request))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any] | AIMessage:
        return await handler(self._boosted(request))

    def _boosted(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        results = RepeatedDocuments(self._settings)
        if request.system_message is not None:
            _read(results, request.system_message)
        messages = [_read(results, message) for message in request.messages]
        return request.override(messages=messages) if results.num_referred else request


class RepeatedDocuments:
    def __init__(self, settings: Settings) -> None:
        self.num_referred = 0  # documents replaced by a reference so far
        self._has_references = settings.dedup.enabled and settings.hints.location
        self._frames = settings.formats.frames
        self._earlier = EarlierTexts(settings.hints.location_template)

    def rewrite(self, text: str, *, is_tool: bool, documents: Sequence[str] = ()) -> str:
        """Return the next text of the conversation; in a tool's result, with references.

        Documents that are not given, in order, are found by their markup.
        """
        groups: Sequence[Group] = _known(text, documents)
        try:
            groups = groups or scan(text, frames=self._frames, is_tool=is_tool).groups
        except TooManyDocumentsError:
            return text
        may_refer = is_tool and self._has_references
        edits: list[Edit] = []
        for group in groups if may_refer else ():
            if documents or stands_alone(group, is_tool=is_tool):
                edits += self._earlier.edits(group)
        for group in groups:
            self._earlier.add(group)
        self.num_referred += len(edits)
        return str(splice(text, edits)) if edits else text


def _read(results: RepeatedDocuments, message: Any) -> Any:
    if isinstance(message, AIMessage):
        return message
    is_tool, content = isinstance(message, ToolMessage), message.content
    if isinstance(content, str):
        documents = _documents(message.artifact) if is_tool else ()
        new: Any = results.rewrite(content, is_tool=is_tool, documents=documents)
    else:
        new = [_read_part(results, part, is_tool=is_tool) for part in content]
    return message if new == content else message.model_copy(update={"content": new})


def _read_part(results: RepeatedDocuments, part: Any, *, is_tool: bool) -> Any:
    if isinstance(part, str):
        return results.rewrite(part, is_tool=is_tool)
    if not isinstance(part.get("text"), str):
        return part
    text = results.rewrite(part["text"], is_tool=is_tool)
    return part if text == part["text"] else {**part, "text": text}


def _documents(artifact: Any) -> Sequence[str]:
    if not isinstance(artifact, list | tuple):
        return ()
    texts = [
        document.page_content for document in artifact if isinstance(document, LangChainDocument)
    ]
    return texts if len(texts) == len(artifact) else ()


def _known(text: str, documents: Sequence[str]) -> list[TextGroup]:
    blocks: list[DocumentBlock] = []
    at = 0
    for document in documents:
        start = text.find(document, at)
        if start < 0:
            return []
        at = start + len(document)
        first, last = strip(text, start, at)
        if first < last:
            blocks.append(DocumentBlock(first, last, text[first:last], first, last))
    return [TextGroup(text, tuple(blocks), at)] if blocks else []
