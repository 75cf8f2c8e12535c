"""Which conversation a request belongs to, where the caller names it: our fields and those of vLLM,
LiteLLM and the Responses API. Knows names, not what is remembered under them.
"""

from collections.abc import Mapping
from typing import Any

from ragboost.errors import RequestError
from ragboost.formats.ragboost_object import ragboost_fields
from ragboost.rewriting.headers import RawHeaders, get_header

SESSION_HEADER = b"x-ragboost-session"
_MAX_LENGTH = 256
_FOREIGN_HEADERS = (b"x-session-id", b"x-litellm-session-id")
_FOREIGN_FIELDS = ("session_id", "conversation", "previous_response_id")


def session_name(body: Mapping[str, Any], headers: RawHeaders) -> str | None:
    """The conversation that the caller names, or None.

    Ours first (`ragboost.session_id`, `x-ragboost-session`), then the headers of others, then the
    fields of others, which stay in the body. A foreign id that is no text of 1 to 256 characters
    is somebody else's affair and does not count.

    Raises:
        RequestError: an id of ours is malformed.
    """
    named = ragboost_fields(body).get("session_id")
    header = get_header(headers, SESSION_HEADER)
    if named is None and header is not None and len(header) > _MAX_LENGTH:
        raise RequestError("x-ragboost-session has more than 256 characters", param="session_id")
    if named or header:
        return str(named or header)
    for name in _FOREIGN_HEADERS:
        if (foreign := _plain(get_header(headers, name))) is not None:
            return f"{name.decode()}:{foreign}"
    for field in _FOREIGN_FIELDS:
        value = body.get(field)
        if isinstance(value, dict):  # the Responses API: {"conversation": {"id": "conv_1"}}
            value = value.get("id")
        if (foreign := _plain(value)) is not None:
            return f"{field}:{foreign}"
    return None


def _plain(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= _MAX_LENGTH else None
