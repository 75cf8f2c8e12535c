"""Tie a request to what its engine will say of it: the id in the events, and where documents end.

Knows bodies, headers and contexts. Does not know streams or the context index.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ragboost.cache_sync.documents import locate_documents
from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.cache_sync.usage import Usage
from ragboost.context import Context
from ragboost.rewriting.headers import RawHeaders, get_header, new_request_id
from ragboost.rewriting.tenants import TenantKey
from ragboost.tokens import TokenCounter

SESSION_FIELD = "session_id"
SESSION_HEADER = b"x-session-id"
_FRAME_BYTES = 3  # line breaks around a label
_TEMPLATE_TOKENS = 8  # what a chat template puts around one message


class EngineRequestId(NamedTuple):
    """The id that the engine puts into its events for a request.

    Attributes:
        name: unique, unless the caller chose it.
        is_ours: to be added to body and headers.
    """

    name: str
    is_ours: bool

    @classmethod
    def of(cls, body: Mapping[str, Any], headers: RawHeaders) -> "EngineRequestId":
        """The caller's own id, where engines look for it; else a new one."""
        extra = body.get("vllm_xargs")
        given = (
            body.get(SESSION_FIELD),
            extra.get(SESSION_FIELD) if isinstance(extra, dict) else None,
            get_header(headers, SESSION_HEADER),
        )
        name = next((value for value in given if isinstance(value, str) and value), None)
        return cls(new_request_id(), True) if name is None else cls(name, False)


class TrackedRequest(NamedTuple):
    """A boosted request on its way.

    Attributes:
        follower: of the backend that it was boosted for.
        front: its documents; None in a later turn, whose documents stand behind its history.
        tag: None: the backend's events are not followed.
        predicted_tokens: cached tokens that the engine is expected to report.
    """

    follower: CacheFollower
    front: PromptLayout | None
    tag: EngineRequestId | None
    predicted_tokens: int

    @property
    def name(self) -> str | None:
        """The id in the events; None: they are not followed."""
        return self.tag.name if self.tag is not None else None


def front_of(
    context: Context,
    tenant: TenantKey,
    *,
    bytes_before: int,
    bytes_behind: int,
    is_measured: bool,
    tokens: TokenCounter,
) -> PromptLayout:
    """Estimate where the documents of a boosted request will stand in its prompt.

    Args:
        context: with documents at the front of the payload.
        tenant: of the request.
        bytes_before: of the prompt's text in front of the documents.
        bytes_behind: of the text behind them, without question and hints.
        is_measured: the documents' lengths were counted.
        tokens: what is known of texts that were not.
    """
    recorded = context.index_entry
    assert recorded is not None, "a later turn has no front"
    per_byte = tokens.tokens_per_byte
    frames = tuple([math.ceil((len(label) + _FRAME_BYTES) * per_byte) for label in context.labels])
    behind = len(context.query) + sum([len(hint.text) for hint in context.hints]) + bytes_behind
    before = round(bytes_before * per_byte) + _TEMPLATE_TOKENS
    rest = sum(recorded.tokens) + sum(frames) + round(behind * per_byte)
    return PromptLayout(
        tenant,
        recorded.documents,
        recorded.tokens,
        frames=frames,
        tokens_before=before,
        prompt_tokens=before + rest,
        is_measured=is_measured,
    )


def ends_told(
    usage: Usage | None, context: Context, tokens: TokenCounter
) -> tuple[int, ...] | None:
    """Where the documents end in the prompt as the engine tokenised it.

    None where the answer does not tell the prompt's token ids, or a document is not found in them.
    """
    if usage is None or usage.prompt_ids is None or context.index_entry is None:
        return None
    ids = [tokens.ids(document.key) for document in context.documents]
    known = [each for each in ids if each is not None]
    if len(known) < len(ids):
        return None
    ends = locate_documents(usage.prompt_ids, known)
    return ends if len(ends) == len(ids) else None
