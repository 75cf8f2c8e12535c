"""Tie a request to what its engine will say of it: the id in the events, and where documents end.

Knows bodies, headers and contexts. Does not know streams or the context index.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ragboost.proxy.follower import Follower, Front
from ragboost.proxy.headers import RawHeaders, get_header, new_request_id
from ragboost.proxy.tenants import TenantKey
from ragboost.types import Context

SESSION_FIELD = "session_id"
SESSION_HEADER = "x-session-id"
_BYTES_PER_TOKEN = 4
_TEMPLATE_TOKENS = 8  # what a chat template puts around one message


class Tag(NamedTuple):
    """The id that the engine puts into its events for a request.

    Attributes:
        name: unique, unless the caller chose it.
        is_ours: to be added to body and headers.
    """

    name: str
    is_ours: bool

    @classmethod
    def of(cls, body: Mapping[str, Any], headers: RawHeaders) -> "Tag":
        """The caller's own id, where engines look for it; else a new one."""
        extra = body.get("vllm_xargs")
        given = (
            body.get(SESSION_FIELD),
            extra.get(SESSION_FIELD) if isinstance(extra, dict) else None,
            get_header(headers, SESSION_HEADER.encode()),
        )
        name = next((value for value in given if isinstance(value, str) and value), None)
        return cls(new_request_id(), True) if name is None else cls(name, False)


class Followed(NamedTuple):
    """A boosted request on its way.

    Attributes:
        follower: of the backend that it was boosted for.
        front: its documents; None in a later turn, whose documents stand behind its history.
        tag: None: the backend's events are not followed.
        predicted_tokens: cached tokens that the engine is expected to report.
    """

    follower: Follower
    front: Front | None
    tag: Tag | None
    predicted_tokens: int

    @property
    def name(self) -> str | None:
        """The id in the events; None: they are not followed."""
        return self.tag.name if self.tag is not None else None


def front_of(context: Context, tenant: TenantKey, *, bytes_before: int, bytes_behind: int) -> Front:
    """Estimate where the documents of a boosted request will stand in its prompt.

    Args:
        context: with documents at the front of the payload.
        tenant: of the request.
        bytes_before: of the prompt's text in front of the documents.
        bytes_behind: of the text behind them, without question and hints.
    """
    recorded = context.recorded
    assert recorded is not None, "a later turn has no front"
    frames = tuple((len(label) + 3) // _BYTES_PER_TOKEN for label in context.labels)
    behind = len(context.query) + sum(len(hint.text) for hint in context.hints) + bytes_behind
    before = bytes_before // _BYTES_PER_TOKEN + _TEMPLATE_TOKENS
    rest = sum(recorded.tokens) + sum(frames) + behind // _BYTES_PER_TOKEN
    return Front(
        tenant,
        recorded.documents,
        recorded.tokens,
        frames=frames,
        tokens_before=before,
        prompt_tokens=before + rest,
    )
