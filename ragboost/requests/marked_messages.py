"""Cache breakpoints that a client sets, and which move on with each of its turns.

A message is kept without them. Sent again, it gets those of the client's message in its place.
"""

from collections.abc import Mapping
from typing import Any

from ragboost.requests.json_body import JsonBody, decode_json, encode_json
from ragboost.requests.wires.cache_marks import marks_of, may_have_cache_mark, without_marks
from ragboost.requests.wires.registry import ANY


def unmarked(message: bytes, of: JsonBody) -> bytes:
    """Return a message that was written for a body, without its breakpoints."""
    if not (of.has_marks and may_have_cache_mark(message)):
        return message
    return encode_json(without_marks(decode_json(message)))


def marked_like(message: bytes, client: Mapping[str, Any]) -> bytes:
    """Return a message that is kept with the breakpoints of the client's in its place.

    Those of its parts are counted from the end, since documents were written in front.
    """
    name = next(filter(client.__contains__, ANY.content), "")
    content = client.get(name)
    parts = content if isinstance(content, list) else []
    by_place = {at - len(parts): marks_of(part) for at, part in enumerate(parts)}
    marks = marks_of(client)
    if not marks and not any(by_place.values()):
        return message
    written = {**decode_json(message), **marks}
    kept = written.get(name)
    if isinstance(kept, str) and parts:
        kept = [{**without_marks(parts[-1]), "text": kept}]
    if isinstance(kept, list):
        written[name] = [_with(part, by_place.get(at - len(kept))) for at, part in enumerate(kept)]
    return encode_json(written)


def _with(part: Any, marks: Mapping[str, Any] | None) -> Any:
    return {**part, **marks} if marks and isinstance(part, dict) else part
