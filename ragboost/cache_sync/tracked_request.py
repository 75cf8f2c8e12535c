"""Associate a boosted request with the cache events of its engine.

Knows bodies, headers and contexts. Does not know streams or the context index.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prompt_layout import PromptLayout, locate_documents
from ragboost.context import Context
from ragboost.rewriting.headers import RawHeaders, get_header, new_request_id
from ragboost.rewriting.names import bounded_name
from ragboost.tokens import TokenCounter
from ragboost.wires.usage import Usage

SESSION_FIELD = "session_id"
SESSION_HEADER = b"x-session-id"


class EngineRequestId(NamedTuple):
    """The id of a request in its engine's events.

    Attributes:
        name: the id; unique unless the client chose it.
        is_generated: not from the client, so it must be added to body and headers.
    """

    name: str
    is_generated: bool

    @classmethod
    def of(cls, body: Mapping[str, Any], headers: RawHeaders) -> "EngineRequestId":
        """Return the client's own id, if it is where engines look for it, or else a new one.

        An id that is too long to be kept, or that cannot be shown, such as half a surrogate pair,
        stays in the body, and its events are not recognised.
        """
        extra = body.get("vllm_xargs")
        given = (
            body.get(SESSION_FIELD),
            extra.get(SESSION_FIELD) if isinstance(extra, dict) else None,
            get_header(headers, SESSION_HEADER),
        )
        name = next((value for value in given if isinstance(value, str) and value), None)
        if name is not None and bounded_name(name) != name:
            return cls(new_request_id(), False)
        return cls(new_request_id(), True) if name is None else cls(name, False)


class TrackedRequest(NamedTuple):
    """A boosted request between its dispatch and its response.

    Attributes:
        follower: of the backend that it was boosted for.
        layout: where its documents are; None in a later turn, whose documents are behind history.
        engine_id: None if no events of the backend are followed.
        predicted_tokens: cached tokens that the engine is expected to report.
    """

    follower: CacheFollower
    layout: PromptLayout | None
    engine_id: EngineRequestId | None
    predicted_tokens: int

    @property
    def name(self) -> str | None:
        """The id in the events, if they are followed."""
        return self.engine_id.name if self.engine_id is not None else None


def exact_ends(
    usage: Usage | None, context: Context, counter: TokenCounter
) -> tuple[int, ...] | None:
    """Return the ends of the documents in the prompt as tokenized by the engine.

    Returns:
        None if the response has no token ids of the prompt, or a document is not found in them.
    """
    if usage is None or usage.prompt_ids is None or context.index_entry is None:
        return None
    documents = []
    for document in context.documents:
        ids = counter.ids(document.key)
        if ids is None:
            return None
        documents.append(ids)
    ends = locate_documents(usage.prompt_ids, documents)
    return ends if len(ends) == len(documents) else None
