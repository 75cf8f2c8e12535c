"""A completion request as it arrives: its body and everything that is derived from it, once.

Knows JSON bodies, raw headers and the documents' shapes. Does not know backends or what is
remembered of conversations.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from ragboost.booster.tenants import TenantKey
from ragboost.config import Settings
from ragboost.errors import ContextIndexError, RagBoostError, RequestError
from ragboost.formats import (
    Format,
    Found,
    TooManyDocumentsError,
    UnknownShapeError,
    find_format,
    make_formats,
)
from ragboost.formats.ragboost_object import is_boost_wanted, ragboost_fields
from ragboost.rewriting.headers import RawHeaders, get_header, user_of
from ragboost.rewriting.json_body import JsonBody
from ragboost.rewriting.message_chain import chain_links
from ragboost.rewriting.recognition import Claim

SESSION_HEADER = b"x-ragboost-session"
_MAX_SESSION_NAME = 256
# Where vLLM, LiteLLM and the Responses API name a conversation.
_OTHER_HEADERS = (b"x-session-id", b"x-litellm-session-id")
_OTHER_FIELDS = ("session_id", "conversation", "previous_response_id")
# The users of an application may share its credentials; these fields tell them apart.
_END_USER = ("user", "safety_identifier")

_REASONS: Mapping[type[RagBoostError], str] = {
    TooManyDocumentsError: "too_many_documents",
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
        """Name the reason of an error."""
        for kind in type(error).__mro__:
            if kind in _REASONS:
                return cls(_REASONS[kind], error)
        return cls("error", error)


class ParsedRequest(NamedTuple):
    """A completion request before it is rewritten.

    Attributes:
        body: its JSON body.
        tenant_key: its model, cache salt and team.
        session: name of its conversation over all users and tenants; None if it is unnamed.
        shape: the shape of its documents; None without documents.
        found: its documents; None without documents.
        bypass: the reason for which there are none to boost; None with documents.
        claim: by which an unnamed conversation is recognised; None where that is not wanted, or
            the request carries no documents.
    """

    body: JsonBody
    tenant_key: TenantKey
    session: str | None = None
    shape: Format | None = None
    found: Found | None = None
    bypass: Bypass | None = None
    claim: Claim | None = None


class RequestParser:
    """Parse completion requests.

    Args:
        settings: of the formats and of sessions.
        has_claims: recognise unnamed conversations if `session.stateless` says so.
    """

    def __init__(self, settings: Settings, *, has_claims: bool = True) -> None:
        self._formats = make_formats(settings)
        self._has_claims = has_claims and settings.session.stateless

    def parse(
        self,
        raw: bytes,
        headers: RawHeaders,
        *,
        user: str | None = None,
        session: str | None = None,
        team: str = "",
    ) -> ParsedRequest:
        """Parse a request.

        Args:
            raw: its body.
            headers: of the request.
            user: under which its conversation is kept; None: the user of its credentials.
            session: unique name of its conversation; None: the one that the request names, if any.
            team: of its API key.

        Raises:
            MalformedBodyError: the body is not a JSON object.
            RequestError: the `ragboost` object or the session header is malformed.
        """
        body = JsonBody(raw)
        key = TenantKey.of(body.fields, team=team)
        user = user_of(headers) if user is None else user
        scope = _scope(body.fields, key, user)
        if session is None and (name := session_name(body.fields, headers)) is not None:
            session = f"{scope.hex()}/{name}"
        shape = found = bypass = None
        try:
            if (hit := find_format(self._formats, body.fields)) is not None:
                shape, found = hit
            else:
                bypass = Bypass("no_documents")
        except UnknownShapeError as error:
            bypass = Bypass.of(error)
        claim = None
        if session is None and self._has_claims and shape is not None and found is not None:
            claim = _claim(body, shape, found, scope=scope)
        return ParsedRequest(body, key, session, shape, found, bypass, claim)


def session_name(fields: Mapping[str, Any], headers: RawHeaders) -> str | None:
    """Return the name that a request gives to its conversation, or None.

    `ragboost.session_id` and `x-ragboost-session` come first, then the headers and the fields of
    other projects; these fields stay in the body, and count only as texts of 1 to 256 characters.

    Raises:
        RequestError: a malformed `ragboost` object or `x-ragboost-session`.
    """
    named = ragboost_fields(fields).get("session_id")
    header = get_header(headers, SESSION_HEADER)
    if named is None and header is not None and len(header) > _MAX_SESSION_NAME:
        raise RequestError("x-ragboost-session has more than 256 characters", param="session_id")
    if named or header:
        return str(named or header)
    for name in _OTHER_HEADERS:
        if _is_name(value := get_header(headers, name)):
            return f"{name.decode()}:{value}"
    for field in _OTHER_FIELDS:
        value = fields.get(field)
        if isinstance(value, dict):  # the Responses API: {"conversation": {"id": "conv_1"}}
            value = value.get("id")
        if _is_name(value):
            return f"{field}:{value}"
    return None


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_SESSION_NAME


def _scope(fields: Mapping[str, Any], key: TenantKey, user: str) -> bytes:
    """Hash, without ambiguity, everything that keeps equal names and messages separate."""
    parts = [user, *key, *[str(fields.get(name, "")) for name in _END_USER]]
    scope = "".join([f"{len(part)}:{part}" for part in parts])
    return hashlib.sha256(scope.encode("utf-8", "surrogatepass")).digest()


def _claim(body: JsonBody, shape: Format, found: Found, *, scope: bytes) -> Claim | None:
    if found.message is None or not body.messages:
        return None
    links = chain_links(body.message_digests[: found.message + 1], seed=scope)
    if shape.in_place:
        return Claim(links)
    keys = tuple([document.key for document in found.documents])
    return Claim(links, shape.name, keys, is_boost_wanted(ragboost_fields(body.fields)))
