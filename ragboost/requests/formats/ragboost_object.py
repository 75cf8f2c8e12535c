"""The `ragboost` object of a body: `{"documents": [...], "session_id": "...", "options": {...}}`.

Its documents are rendered into the last user message, or the `prompt`, and the object is removed. A
malformed one is the caller's error; the engine checks its `reuse`.
"""

from collections.abc import Mapping
from typing import Any

from ragboost.booster.context import Context
from ragboost.errors import RequestError, json_type
from ragboost.requests.formats.documents import DocumentPool, FoundDocuments
from ragboost.requests.wires.body import find_question, question_field, replace_question
from ragboost.types import is_blank

FIELD = "ragboost"
_FIELDS = ("documents", "session_id", "options", "reuse", "graph")
GRAPH = "graph"
_MAX_SESSION_ID = 256


class RagboostObject:
    name = "ragboost_object"
    in_message = True
    in_place = False
    is_ours = True

    def __init__(self, *, max_documents: int, pool: DocumentPool) -> None:
        self._max_documents = max_documents
        self._pool = pool

    def extract(
        self, body: Mapping[str, Any], *, tenant: str = "", learns: bool = True
    ) -> FoundDocuments | None:
        if FIELD not in body:
            return None
        values, where = body[FIELD].get("documents", []), f"{FIELD}.documents"
        if isinstance(values, list) and len(values) > self._max_documents:
            raise RequestError(
                f"{where} has {len(values)} documents; the limit is {self._max_documents} "
                "(formats.max_documents)",
                param=where,
            )
        documents = self._pool.all_of(values, where=where)
        if not documents:
            return None
        question = find_question(body)
        if question is None:
            raise RequestError(
                f"{FIELD}.documents needs a user message with text in `messages`, or a `prompt` "
                "that is one string; in other fields mark the documents in the text",
                param=question_field(body),
            )
        return FoundDocuments(question[0], documents, question[1], blank=blank_positions(values))

    def replace(
        self, body: Mapping[str, Any], found: FoundDocuments, context: Context
    ) -> dict[str, Any]:
        body = without_object(body)
        return replace_question(body, context.render(), message=found.message)

    def note(self, body: Mapping[str, Any], found: FoundDocuments, context: Context) -> str:
        return "\n".join(hint.text for hint in context.hints)


def ragboost_fields(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the validated object of a body; empty if it has none.

    Raises:
        RequestError: names the invalid field.
    """
    if FIELD not in body:
        return {}
    fields = body[FIELD]
    if not isinstance(fields, dict):
        raise RequestError(f"{FIELD} must be an object, got {json_type(fields)}", param=FIELD)
    for name in fields:
        if name not in _FIELDS:
            raise RequestError(
                f"{FIELD}.{name} is unknown; known are {', '.join(_FIELDS)}",
                param=f"{FIELD}.{name}",
            )
    session, options = fields.get("session_id"), fields.get("options", {})
    is_name = isinstance(session, str) and 0 < len(session) <= _MAX_SESSION_ID
    if session is not None and not is_name:
        where = f"{FIELD}.session_id"
        raise RequestError(
            f"{where} must be a string of 1 to {_MAX_SESSION_ID} characters", param=where
        )
    _check_options(options)
    return fields


def blank_positions(values: Any) -> tuple[int, ...]:
    """Return the positions of the documents that are left out, since they have no text."""
    if not isinstance(values, list):
        return ()
    return tuple([at for at, value in enumerate(values) if is_blank(value)])


def is_boost_wanted(fields: Mapping[str, Any]) -> bool:
    """Return the option `boost`; false renders the documents as given, without hints."""
    return bool(fields.get("options", {}).get("boost", True))


def without_object(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body for the backend: of the object, only a `graph` is kept, for engines that
    read it."""
    kept = {name: value for name, value in body.items() if name != FIELD}
    fields = body.get(FIELD)
    if isinstance(fields, dict) and GRAPH in fields:
        kept[FIELD] = {GRAPH: fields[GRAPH]}
    return kept


def _check_options(options: Any) -> None:
    where = f"{FIELD}.options"
    if not isinstance(options, dict):
        raise RequestError(f"{where} must be an object, got {json_type(options)}", param=where)
    for name, value in options.items():
        if name != "boost":
            raise RequestError(
                f"{where}.{name} is unknown; known is boost", param=f"{where}.{name}"
            )
        if not isinstance(value, bool):
            raise RequestError(f"{where}.boost must be true or false", param=f"{where}.boost")
