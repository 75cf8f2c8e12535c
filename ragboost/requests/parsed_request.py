"""A completion request as it arrives: its body and everything that follows from it, once.

Knows JSON bodies, raw headers and the documents' shapes. Does not know backends.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self, TypeVar

from ragboost.booster.tenants import TenantKey
from ragboost.booster.tokens import num_bytes
from ragboost.errors import ContextIndexError, RagBoostError, RequestError
from ragboost.requests.formats import (
    AmbiguousDocumentsError,
    Detection,
    Format,
    FoundDocuments,
    NothingToDoError,
    NumberedDocumentsError,
    OrderedDocumentsError,
    TooManyDocumentsError,
    UnknownShapeError,
    UnmarkedDocumentsError,
    find_format,
)
from ragboost.requests.formats.ragboost_object import is_boost_wanted, ragboost_fields
from ragboost.requests.headers import RawHeaders, user_of
from ragboost.requests.json_body import JsonBody, Link, chain_links
from ragboost.requests.prompt_prefix import prompt_prefix
from ragboost.requests.sent_history import Conversation, ResentMessages
from ragboost.requests.wires.normal_form import EngineKind
from ragboost.requests.wires.registry import ANY
from ragboost.types import Request

SESSION_HEADER = b"x-ragboost-session"
_MAX_SESSION_NAME = 256
# Smaller requests stay on the event loop: handing over to a thread costs more than it frees.
_LARGE_BYTES = 256 * 1024
_MANY_DOCUMENTS = 1000  # boosting so many takes about 10 ms
# Where vLLM, LiteLLM and the Responses API name a conversation.
_OTHER_HEADERS = (b"x-session-id", b"x-litellm-session-id")
_SESSION_HEADERS = frozenset({SESSION_HEADER, *_OTHER_HEADERS})
_OTHER_FIELDS = ("session_id", *ANY.stored)
# The users of an application may share its credentials; these fields tell them apart.
_END_USER = ("user", "safety_identifier")


T = TypeVar("T")

_REASONS: Mapping[type[RagBoostError], str] = {
    TooManyDocumentsError: "too_many_documents",
    NumberedDocumentsError: "numbered_documents",
    OrderedDocumentsError: "ordered_documents",
    AmbiguousDocumentsError: "ambiguous_documents",
    NothingToDoError: "nothing_to_do",
    UnmarkedDocumentsError: "unmarked_documents",
    UnknownShapeError: "unknown_shape",
    RequestError: "bad_documents",
    ContextIndexError: "context_index",
}


class Bypass(NamedTuple):
    """The reason for which a request is not boosted, and the error behind it, if any."""

    reason: str
    error: RagBoostError | None = None

    @classmethod
    def of(cls, error: RagBoostError) -> "Bypass":
        for kind in type(error).__mro__:
            if kind in _REASONS:
                return cls(_REASONS[kind], error)
        return cls("error", error)


NO_DOCUMENTS = Bypass("no_documents")
UNREAD = Bypass("malformed_body")
NUMBERED = Bypass("numbered_documents")


@dataclass(eq=False)  # made for each request: a frozen one takes five times as long
class ParsedRequest:
    """A request as it came: the body, and what follows from it. Never changed."""

    body: JsonBody
    tenant_key: TenantKey
    options: Mapping[str, Any]  # the fields of the `ragboost` object, checked; empty without one
    headers: RawHeaders = ()
    has_stream_options: bool = True  # its API takes fields that it does not define
    # False: the client asks for its documents in the order given, without hints, or they are held
    # out.
    is_boost_wanted: bool = True
    arm: Literal["boosted", "held_out"] | None = None  # of a hold-out, if it is in one
    # Level of the ratio at which its answer is checked, -1 for none; None: it is not checked.
    check_level: int | None = None
    session: str | None = None  # unique name of its conversation; None: unnamed
    owner: bytes = b""  # hash of what tells users apart: credentials, end user, cache salt
    shape: Format | None = None  # of its documents; None without any, as is `found`
    found: FoundDocuments | None = None
    kind: EngineKind = ""  # of the backends
    bypass: Bypass | None = None  # why there are no documents to boost
    is_followed: bool = False  # its history is looked for, and kept

    @classmethod
    def unread(cls, raw: bytes, headers: RawHeaders, *, team: str) -> Self:
        """Return a request whose body is no JSON object, which the backend reports."""
        key = TenantKey("", "", team)
        return cls(JsonBody.unread(raw), key, {}, headers, bypass=UNREAD)

    @cached_property
    def detection(self) -> Detection:
        """The detection of its documents, whatever becomes of the request."""
        if self.shape is not None and self.found is not None:
            return Detection.found(self.shape, self.found)
        reason, error = self.bypass or NO_DOCUMENTS
        return Detection.left(reason, error)

    @property
    def is_large(self) -> bool:
        """Rewriting it takes too long for an event loop."""
        num = len(self.found.documents) if self.found is not None else 0
        return num > _MANY_DOCUMENTS or len(self.body.raw) > _LARGE_BYTES

    @cached_property
    def links(self) -> Sequence[Link]:
        """The chain of its messages, each with all before it.

        Documents beside them belong to the conversation only if it has a name: without one, they
        are a part of their question.
        """
        digests, found, shape = self.body.message_digests, self.found, self.shape
        is_beside = shape is not None and shape.in_message and not shape.in_place
        if is_beside and self.session is None and found and (at := found.message) is not None:
            question = b"\n".join((digests[at], *map(str.encode, found.keys)))
            digests = [*digests[:at], question, *digests[at + 1 :]]
        return chain_links(digests, seed=self._scope)

    @cached_property
    def links_behind(self) -> Sequence[Link]:
        """The chain of messages behind documents that stand above them all; empty without any."""
        is_above = self.shape is not None and not self.shape.in_message
        if is_above and self.found is not None:
            above = "\n".join(self.found.keys).encode()
        else:
            above = self.body.field_bytes("documents") if self.shape is None else b""
        if not above:
            return ()
        return chain_links(self.body.message_digests, seed=b"\n".join((self._scope, above)))

    @property
    def chain(self) -> Sequence[Link]:
        """All links under which its history may be found."""
        return [*self.links, *self.links_behind]

    @cached_property
    def _scope(self) -> bytes:
        """Seed of the links: a conversation's name stands for its user, model and cache salt;
        without one, the tenant, behind these instructions."""
        if self.session is not None:
            return self.session.encode("utf-8", "surrogatepass")
        body = self.body
        above = [body.instruction_bytes(name) for name in ANY.instructions if name in body.fields]
        return b"".join((repr(self.tenant_key).encode(), *above))

    @cached_property
    def prompt_prefix(self) -> str:
        """Hash of the text before its documents; empty without any."""
        if self.shape is None or self.found is None:
            return ""
        return prompt_prefix(self.body, self.shape, self.found, kind=self.kind)

    def bytes_around(self) -> tuple[int, int]:
        """Count the bytes of the messages before the documents', and of that one and all others.

        The second count leaves the documents out, but not other text of their message.
        """
        body, found = self.body, self.found
        if found is None or found.message is None:
            return 0, 0
        sizes = [memoryview(message).nbytes for message in body.messages]
        texts = [document.text for document in found.documents]
        is_ascii = all(map(str.isascii, texts))
        inside = sum(map(len if is_ascii else num_bytes, texts))
        return sum(sizes[: found.message]), max(0, sum(sizes[found.message :]) - inside)

    def leading(self, conversation: Conversation | None) -> Request | None:
        """Return the documents at the front of the payload, whose order is free, for planning.

        None if there are none. `Request.prompt_prefix` is the hash of the text before them. Never
        raises: why a malformed request has none stands in `bypass.error`.
        """
        shape, found = self.shape, self.found
        if shape is None or found is None or not found.documents or not self.is_boost_wanted:
            return None
        history = self.history(conversation, is_behind=not shape.in_message, is_boosted=True)
        if history.sent or history.repeated is not None:
            return None
        return Request(found.query, found.documents, prompt_prefix=self.prompt_prefix)

    def history(
        self,
        conversation: Conversation | None,
        *,
        is_behind: bool = False,
        is_boosted: bool | None = None,
    ) -> ResentMessages:
        """Find the rewritten messages before and at the question.

        Args:
            is_behind: the documents above the messages belong to their history.
            is_boosted: the client wants its documents boosted; None: that makes no difference.
        """
        if self.found is None or self.found.message is None or not self.links:
            return ResentMessages(self.body, None)
        return ResentMessages(
            self.body,
            conversation,
            question=self.found.message,
            retrieved=self.found.keys,
            is_boosted=is_boosted,
            links=self.links_behind if is_behind else self.links,
        )


def parse_request(
    raw: bytes,
    headers: RawHeaders,
    *,
    formats: tuple[Format, ...],
    user: str | None = None,
    session: str | None = None,
    team: str = "",
    learns: bool = True,
    kind: EngineKind = "",
    has_stream_options: bool = True,
) -> ParsedRequest:
    """Parse a completion request.

    Args:
        user: under which its conversation is kept; None: the user of its credentials.
        session: unique name of its conversation; None: the one that the request names, if any.
        team: of its API key.
        learns: it may teach how documents stand in its tenant's texts.
        kind: of the backends.
        has_stream_options: its API takes fields that it does not define.

    Raises:
        MalformedBodyError: the body is not a JSON object.
        RequestError: the `ragboost` object or the session header is malformed.
    """
    body = JsonBody(raw)
    options, key = ragboost_fields(body.fields), TenantKey.of(body.fields, team=team)
    user = user_of(headers) if user is None else user
    owner = _owner(body.fields, key, user)
    if session is None and (name := _session_name(body.fields, options, headers)) is not None:
        session = f"{hashlib.sha256(owner + key.model.encode()).hexdigest()}/{name}"
    shape, found, bypass = None, None, None
    try:
        tenant = "\n".join((*key, user))
        hit = find_format(formats, body.fields, tenant=tenant, learns=learns)
        shape, found = hit or (None, None)
        bypass = None if hit is not None else NO_DOCUMENTS
    except UnknownShapeError as error:
        bypass = Bypass.of(error)
    return ParsedRequest(
        body,
        key,
        options,
        headers,
        has_stream_options,
        is_boost_wanted=is_boost_wanted(options),
        session=session,
        owner=owner,
        shape=shape,
        found=found,
        kind=kind,
        bypass=bypass,
        is_followed=session is not None or shape is not None or _holds_list(bypass),
    )


async def run_bytes(work: Callable[[], T], num_bytes: int, *, max_bytes: int = _LARGE_BYTES) -> T:
    """Do work on a body, in a thread if that has more than `max_bytes`."""
    return await asyncio.to_thread(work) if num_bytes > max_bytes else work()


def _holds_list(bypass: Bypass | None) -> bool:
    """Return True if documents were found that may not move now: an earlier request, with fewer
    messages, may have moved them."""
    kinds = (AmbiguousDocumentsError, NumberedDocumentsError)
    return bypass is not None and isinstance(bypass.error, kinds)


def _session_name(
    fields: Mapping[str, Any], options: Mapping[str, Any], headers: RawHeaders
) -> str | None:
    """Return the name that a request gives to its conversation, or None.

    `ragboost.session_id` and `x-ragboost-session` come first, then the headers and the fields of
    other projects; these fields stay in the body, and count only as texts of 1 to 256 characters.

    Raises:
        RequestError: a malformed `x-ragboost-session`.
    """
    names = {name: value for name, value in reversed(headers) if name in _SESSION_HEADERS}
    named, raw = options.get("session_id"), names.get(SESSION_HEADER)
    if named is None and raw is not None and len(raw) > _MAX_SESSION_NAME:
        raise RequestError("x-ragboost-session has more than 256 characters", param="session_id")
    if named or raw:
        return str(named or (raw or b"").decode("latin-1"))
    for header in _OTHER_HEADERS if names else ():
        if header in names and _is_name(value := names[header].decode("latin-1")):
            return f"{header.decode()}:{value}"
    for field in _OTHER_FIELDS:
        if (given := fields.get(field)) is None:
            continue
        if isinstance(given, dict):  # the Responses API: {"conversation": {"id": "conv_1"}}
            given = given.get("id")
        if _is_name(given):
            return f"{field}:{given}"
    return None


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_SESSION_NAME


def _owner(fields: Mapping[str, Any], key: TenantKey, user: str) -> bytes:
    parts = (user, key.cache_salt, key.team, *map(fields.get, _END_USER))
    return hashlib.sha256(repr(parts).encode()).digest()
