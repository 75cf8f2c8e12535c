"""One line of a batch file: find its documents, and write it with another document order.

Lines are OpenAI batch lines, plain `{"id", "question", "documents" | "doc_ids"}`, or those of
`proxy.record`.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from ragboost.booster.context import Context
from ragboost.config import Settings
from ragboost.errors import RequestError, json_type, show
from ragboost.integrations.retrieval.corpus import Corpus, find_documents
from ragboost.requests.formats import (
    Format,
    FoundDocuments,
    LeftAloneError,
    find_format,
    make_formats,
)
from ragboost.requests.formats.detection import FOUND
from ragboost.requests.formats.ragboost_object import (
    blank_positions,
    is_boost_wanted,
    ragboost_fields,
    without_object,
)
from ragboost.requests.json_body import JsonBody
from ragboost.requests.parsed_request import NO_DOCUMENTS, Bypass
from ragboost.requests.prompt_prefix import prompt_prefix
from ragboost.requests.recorded_request import RecordedRequest
from ragboost.types import Document, DocumentId, as_documents
from ragboost.util.jsonl import decode

_OPENAI_FIELDS = ("custom_id", "method", "url", "body")
_PLAIN_FIELDS = ("question", "documents", "doc_ids")
_MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class BatchLine:
    value: dict[str, Any]  # the line's JSON object
    id: DocumentId  # its `custom_id` or `id`
    query: str
    documents: tuple[Document, ...]  # in relevance order; empty if the line has none
    # Hash of everything before the documents, such as the system prompt and the model; only
    # requests with the same head can share prefixes.
    head: str
    is_boost_wanted: bool  # False if the caller asked for the documents unchanged
    # Returns the object to send with a context's documents and hints; called with None for a
    # request without documents.
    write: Callable[[Context | None], dict[str, Any]]
    tokens: tuple[int, ...] | None = None  # lengths of the documents; None: to be counted
    blank: tuple[int, ...] = ()  # positions in the input of documents without text, left out
    detection: str = FOUND  # or why it has no documents


class LineParser:
    """Parses lines; without a corpus, those with `doc_ids` are malformed.

    Lines of `proxy.record` are read only where asked for, since they cannot be written.
    """

    def __init__(
        self, settings: Settings, *, corpus: Corpus | None = None, reads_records: bool = False
    ) -> None:
        self._formats = make_formats(settings, maps_answers=False)
        self._corpus = corpus
        self._reads_records = reads_records

    def parse(self, raw: bytes) -> BatchLine:
        value = parse_json(raw)
        if not isinstance(value, dict):
            raise RequestError(f"the line must be a JSON object, got {json_type(value)}")
        if "body" in value or "custom_id" in value:
            return self._openai(value)
        if (record := RecordedRequest.of(value)) is not None:
            return self._recorded(value, record)
        if any(name in value for name in _PLAIN_FIELDS):
            return self._plain(value)
        raise RequestError(
            "the line must have the fields custom_id, method, url and body, or id, question and "
            f"documents or doc_ids; it has {', '.join(list(value)[:8]) or 'none'}"
        )

    def _openai(self, value: dict[str, Any]) -> BatchLine:
        for name in _OPENAI_FIELDS:
            kind, what = (dict, "an object") if name == "body" else (str, "a string")
            if not isinstance(value.get(name), kind):
                raise RequestError(f"{name} must be {what}, got {_show(value, name)}", param=name)
        body = value["body"]
        boost = is_boost_wanted(ragboost_fields(body))
        match, detection = None, NO_DOCUMENTS.reason
        try:
            if (match := find_format(self._formats, body)) is not None:
                detection = FOUND
        except LeftAloneError as error:
            detection = Bypass.of(error).reason

        def write(context: Context | None) -> dict[str, Any]:
            if match is None or context is None:
                return {**value, "body": without_object(body)}
            return {**value, "body": without_object(match[0].replace(body, match[1], context))}

        return BatchLine(
            value=value,
            id=value["custom_id"],
            query=match[1].query if match else "",
            documents=match[1].documents if match else (),
            head=_head(body, *match) if match else "",
            is_boost_wanted=boost,
            write=write,
            blank=match[1].blank if match else (),
            detection=detection,
        )

    def _plain(self, value: dict[str, Any]) -> BatchLine:
        if "documents" in value and "doc_ids" in value:
            raise RequestError(
                "documents and doc_ids exclude each other: give one", param="doc_ids"
            )
        if not isinstance(value.get("question"), str):
            raise RequestError(
                f"question must be a string, got {_show(value, 'question')}", param="question"
            )
        if isinstance(value.get("id"), list | dict):
            raise RequestError(f"id must be a JSON scalar, got {_show(value, 'id')}", param="id")
        field = "doc_ids" if "doc_ids" in value else "documents"
        if field == "doc_ids":
            documents = find_documents(self._corpus, value["doc_ids"])
        else:
            documents = tuple(as_documents(value.get("documents", [])))
        blank = blank_positions(value.get(field))
        return BatchLine(
            value=value,
            id=value.get("id"),
            query=value["question"],
            documents=documents,
            head="",
            is_boost_wanted=True,
            write=lambda context: _write_plain(value, field, context, blank=blank),
            blank=blank,
            detection=FOUND if documents else NO_DOCUMENTS.reason,
        )

    def _recorded(self, value: dict[str, Any], record: RecordedRequest) -> BatchLine:
        if not self._reads_records:
            raise RequestError("a log of proxy.record has no texts to send: `simulate` reads it")
        return BatchLine(
            value=value,
            id=None,
            query="",
            documents=tuple([Document(name) for name in record.doc_ids]),
            head=f"{record.tenant} {record.head}",
            is_boost_wanted=True,
            write=lambda _: value,
            tokens=record.doc_tokens,
        )


def kept(context: Context, blank: Sequence[int] = ()) -> list[int]:
    """Return the documents' positions in the input, by prompt order; `blank` are left out."""
    first: dict[int, int] = {}
    left_out = frozenset(blank)
    given = (at for at in count() if at not in left_out)
    for position, place in zip(given, context.positions, strict=False):
        first.setdefault(place, position)
    return [first[place] for place in range(len(context.documents))]


def parse_json(raw: bytes) -> Any:
    """Decode a line. Lone surrogates are accepted, as engines do; NaN and infinity are not."""
    value = decode(raw)
    _check_values(value)
    return value


def _check_values(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_DEPTH):
        deeper: list[Any] = []
        for element in level:
            if isinstance(element, dict):
                deeper.extend(element.values())
            elif isinstance(element, list):
                deeper.extend(element)
            elif isinstance(element, float) and not math.isfinite(element):
                path = next(_non_finite(value, ""))
                raise RequestError(f"{path} must be finite, got {element}", param=path)
        if not deeper:
            return
        level = deeper
    raise RequestError(f"nested more than {_MAX_DEPTH} levels deep")


def _non_finite(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, element in value.items():
            yield from _non_finite(element, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for i, element in enumerate(value):
            yield from _non_finite(element, f"{path}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield path


def encode_json(value: Mapping[str, Any]) -> bytes:
    """Encode a line, without a line break; lone surrogates become escapes."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False).encode("ascii")


def _write_plain(
    value: dict[str, Any], field: str, context: Context | None, *, blank: Sequence[int]
) -> dict[str, Any]:
    if context is None:
        return {**value, field: []} if blank else value
    moved = {**value, field: [value[field][i] for i in kept(context, blank)]}
    if context.hints:
        moved["hints"] = [hint.text for hint in context.hints]
    return moved


def _head(body: Mapping[str, Any], shape: Format, found: FoundDocuments) -> str:
    text_before = prompt_prefix(JsonBody(json.dumps(body).encode()), shape, found)
    parts = [body.get("model"), shape.name, text_before]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _show(value: Mapping[str, Any], name: str) -> str:
    return show(value[name]) if name in value else "nothing"
